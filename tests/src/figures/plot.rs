//! A figure as SVG.

use std::io;

use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use super::drawing::{Drawing, LineOrigin, Panel, Unit};

type PlotError = DrawingAreaErrorKind<io::Error>;

/// Pixels of a panel, and of the title above all of them.
const PANEL: (u32, u32) = (620, 400);
const TITLE: u32 = 36;
/// Colours that a reader who sees no red or no green can tell apart (Okabe and Ito, "Color Universal Design", 2008).
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(0, 0, 0),
];
const FONT: &str = "sans-serif";

pub(super) fn svg(drawing: &Drawing) -> Result<String, PlotError> {
    let mut text = String::new();
    let panels = drawing.panels.len();
    let size = (PANEL.0 * panels as u32, PANEL.1 + TITLE);
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let root = root.titled(&drawing.title, (FONT, 18))?;
        for (area, panel) in root.split_evenly((1, panels)).iter().zip(&drawing.panels) {
            draw(area, panel)?;
        }
        root.present()?;
    }
    Ok(text)
}

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, panel: &Panel) -> Result<(), PlotError> {
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::MAX, f64::MIN), |(least, most), value| {
            (least.min(value), most.max(value))
        })
    };
    let (left, right) = bounds(&mut points().map(|point| point.0));
    let (least, most) = bounds(&mut points().map(|point| point.1));
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(12)
        .margin_right(28)
        .x_label_area_size(44)
        .y_label_area_size(84);
    let base = match panel.x.unit {
        Unit::Bytes => 2.0,
        _ => 10.0,
    };
    let x = (left..right).log_scale().base(base);
    match panel.y.unit {
        Unit::Share => {
            let chart = builder.build_cartesian_2d(x, 0.0..most * 1.45)?;
            lines(chart, panel)
        }
        _ => {
            // Room for the names of the lines, by tenfold steps.
            let room = (most / least).powf(0.1 * panel.lines.len() as f64).max(2.0);
            let y = (least * 0.7..most * room).log_scale();
            lines(builder.build_cartesian_2d(x, y)?, panel)
        }
    }
}

fn lines<'a, 'b: 'a, Y>(
    mut chart: ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, Y>>,
    panel: &Panel,
) -> Result<(), PlotError>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc(panel.x.label)
        .y_desc(panel.y.label)
        .x_labels(8)
        .y_labels(8)
        .x_label_formatter(&|value| panel.x.unit.text(*value))
        .y_label_formatter(&|value| panel.y.unit.text(*value))
        .light_line_style(TRANSPARENT)
        .label_style((FONT, 13))
        .draw()?;
    for (line, colour) in panel.lines.iter().zip(COLOURS.iter().cycle()) {
        let (points, style) = (line.points.iter().copied(), colour.stroke_width(2));
        let drawn = match line.origin {
            LineOrigin::Measured => {
                let line = LineSeries::new(points, style.filled()).point_size(3);
                chart
                    .draw_series(line)?
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style).into_dyn())
            }
            LineOrigin::Model => {
                let line = DashedLineSeries::new(points, 7, 5, style);
                chart.draw_series(line)?.legend(move |(x, y)| {
                    DashedPathElement::new([(x, y), (x + 24, y)], 7, 5, style).into_dyn()
                })
            }
            LineOrigin::Paper => {
                let marks = points.map(move |point| TriangleMarker::new(point, 6, style));
                chart
                    .draw_series(marks)?
                    .legend(move |(x, y)| TriangleMarker::new((x + 12, y), 6, style).into_dyn())
            }
        };
        drawn.label(line.name.as_str());
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .legend_area_size(32)
        .label_font((FONT, 13))
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()
}
