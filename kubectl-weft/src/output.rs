//! How objects are printed: as tables for people, or as they are for programs.
//!
//! What people read goes through [`text`], [`say`] or [`Format::show`], which escape what a terminal would obey:
//! tenants choose names, paths and the messages that name them.

use std::{
    fmt::Display,
    io::{self, Write},
};

use serde::Serialize;
use weft_cli::printable;

/// How it is printed; without it as a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// The objects as JSON.
    Json,
    /// The objects as YAML.
    Yaml,
    /// A table with all columns.
    Wide,
}

/// The option of every command that prints objects.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Format {
    /// How it is printed [default: as a table].
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<Output>,
}

impl Format {
    /// A program reads it.
    pub fn is_object(self) -> bool {
        matches!(self.output, Some(Output::Json | Output::Yaml))
    }

    /// A table has all columns.
    pub fn is_wide(self) -> bool {
        self.output == Some(Output::Wide)
    }

    /// Writes `object`, unless a table is asked for; whether it did.
    ///
    /// # Errors
    /// The output takes no more.
    pub fn write(self, object: &impl Serialize, out: &mut impl Write) -> io::Result<bool> {
        match self.output {
            Some(Output::Json) => {
                serde_json::to_writer_pretty(&mut *out, object)?;
                writeln!(out)?;
            }
            Some(Output::Yaml) => write!(out, "{}", yaml(object)?)?,
            Some(Output::Wide) | None => return Ok(false),
        }
        Ok(true)
    }

    /// Writes `object`, or else `table`, which shows it to people.
    ///
    /// # Errors
    /// The output takes no more.
    pub fn show(
        self,
        object: &impl Serialize,
        table: impl Display,
        out: &mut impl Write,
    ) -> io::Result<()> {
        match self.write(object, out)? {
            true => Ok(()),
            false => text(table, out),
        }
    }

    /// Writes `object` as one of several: a line of JSON, or a YAML document.
    ///
    /// # Errors
    /// The output takes no more.
    pub fn write_next(self, object: &impl Serialize, out: &mut impl Write) -> io::Result<bool> {
        match self.output {
            Some(Output::Json) => writeln!(out, "{}", serde_json::to_string(object)?)?,
            Some(Output::Yaml) => write!(out, "---\n{}", yaml(object)?)?,
            Some(Output::Wide) | None => return Ok(false),
        }
        out.flush()?;
        Ok(true)
    }
}

/// Writes lines for people.
///
/// # Errors
/// The output takes no more.
pub fn text(lines: impl Display, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{}", printable::lines(lines))
}

/// Writes a line for people; what has line breaks stays on one line.
///
/// # Errors
/// The output takes no more.
pub fn say(line: impl Display, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", printable::line(line))
}

fn yaml(object: &impl Serialize) -> io::Result<String> {
    serde_saphyr::to_string(object).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written(output: Output, object: &Value) -> String {
        let format = Format {
            output: Some(output),
        };
        let mut out = Vec::new();
        format.write(object, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn yaml_and_json_hold_the_same_object() {
        // Text that YAML would take for something else.
        let object = json!({
            "digest": "0123456789", "name": "no", "size": "1e3", "time": "2026-01-01T00:00:00Z",
            "message": "a: b\nc # d", "empty": "", "none": null, "list": [], "map": {}, "bytes": 9_007_199_254_740_993_u64,
        });
        let yaml = written(Output::Yaml, &object);
        assert_ne!(yaml, written(Output::Json, &object));
        assert_eq!(
            serde_saphyr::from_str::<Value>(&yaml).unwrap(),
            object,
            "{yaml}"
        );
        assert_eq!(written(Output::Wide, &object), "");
    }

    #[test]
    fn objects_that_follow_each_other_are_lines_or_documents() {
        for (output, text) in [
            (Output::Json, "{\"a\":1}\n{\"a\":1}\n"),
            (Output::Yaml, "---\na: 1\n---\na: 1\n"),
        ] {
            let format = Format {
                output: Some(output),
            };
            let mut out = Vec::new();
            for _ in 0..2 {
                format.write_next(&json!({"a": 1}), &mut out).unwrap();
            }
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }
}
