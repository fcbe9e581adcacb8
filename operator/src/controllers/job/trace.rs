//! The trace of a job: a span of the whole, and below it one of each stage, some of them for each node.
//!
//! | span | from, to |
//! |---|---|
//! | `TransferJob` | this process begins to work on the job, its end |
//! | `stat` | the source is asked what there is |
//! | `plan` | there is a plan, and its attempt's number is being recorded |
//! | `prepare` | destinations check what they have, and reserve space |
//! | `transfer` | a node gets bytes |
//! | `verify` | it has all bytes, and compares, syncs and renames them |
//! | `backoff` | between two attempts |
//! | `end` | nodes are told that it is over |

use std::{collections::BTreeMap, time::SystemTime};

use opentelemetry::{
    Context, KeyValue,
    trace::{Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _},
};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use weft_proto::agent::v1::State;
use weft_transfer::{
    Destination, DestinationPhase, End, Failure, Transfer, TransferPhase, node_of,
};

use crate::controllers::{cache::Key, condition::truncate};

/// Destinations of a job that have spans of their own, as many as its status lists.
const NODES_MAX: usize = 64;

/// What a span below that of the job is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Stat,
    Plan,
    Prepare,
    /// To this node.
    Transfer(String),
    /// At this node.
    Verify(String),
    Backoff,
    End,
}

impl Stage {
    fn name(&self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::Plan => "plan",
            Self::Prepare => "prepare",
            Self::Transfer(_) => "transfer",
            Self::Verify(_) => "verify",
            Self::Backoff => "backoff",
            Self::End => "end",
        }
    }

    fn node(&self) -> Option<&str> {
        match self {
            Self::Transfer(node) | Self::Verify(node) => Some(node),
            _ => None,
        }
    }
}

/// The trace of one transfer. What is under way when it is dropped ends then.
#[derive(Debug)]
pub(crate) struct JobTrace {
    tracer: SdkTracer,
    job: Span,
    parent: Context,
    under_way: BTreeMap<Stage, Span>,
}

impl JobTrace {
    /// Of a job that begins in a fabric.
    pub(crate) fn begin(tracer: SdkTracer, key: &Key, fabric: &str, at: SystemTime) -> Self {
        let span = SpanBuilder::from_name("TransferJob")
            .with_kind(SpanKind::Internal)
            .with_start_time(at)
            .with_attributes([
                KeyValue::new("k8s.namespace.name", key.namespace.clone()),
                KeyValue::new("weft.job", key.name.clone()),
                KeyValue::new("weft.fabric", fabric.to_owned()),
            ]);
        let job = tracer.build_with_context(span, &Context::new());
        let parent = Context::new().with_remote_span_context(job.span_context().clone());
        Self {
            tracer,
            job,
            parent,
            under_way: BTreeMap::new(),
        }
    }

    /// Ends the spans of stages that are over by now, and begins those of stages that are under way.
    pub(crate) fn observe(&mut self, transfer: &Transfer, at: SystemTime) {
        let stages = stages(transfer);
        let over = |stage: &Stage, _: &mut Span| !stages.contains(stage);
        for (stage, mut span) in self.under_way.extract_if(.., over) {
            if let Some(failure) = stage.node().and_then(|node| failure(transfer, node)) {
                span.set_status(error(&failure));
            }
            span.end_with_timestamp(at);
        }
        for stage in stages {
            if !self.under_way.contains_key(&stage) {
                let attempt = i64::from(transfer.attempt());
                let mut attributes = vec![KeyValue::new("weft.attempt", attempt)];
                if let Some(node) = stage.node() {
                    attributes.push(KeyValue::new("k8s.node.name", node.to_owned()));
                }
                let span = SpanBuilder::from_name(stage.name())
                    .with_start_time(at)
                    .with_attributes(attributes);
                let span = self.tracer.build_with_context(span, &self.parent);
                self.under_way.insert(stage, span);
            }
        }
        if let Some(end) = transfer.end() {
            self.end(transfer, end, at);
        }
    }

    fn end(&mut self, transfer: &Transfer, end: End, at: SystemTime) {
        let (sent, resent) = transfer.chunks();
        let number =
            |name, number: u64| KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX));
        self.job.set_attributes([
            KeyValue::new("weft.link", truncate(&transfer.link().0)),
            number("weft.attempts", transfer.attempt().into()),
            number("weft.destinations", transfer.destinations().count() as u64),
            number("weft.bytes", transfer.bytes_verified()),
            number("weft.bytes_received", transfer.bytes_received()),
            number("weft.chunks", sent),
            number("weft.chunks_resent", resent),
        ]);
        let failed = transfer.destinations().find_map(|one| of_phase(&one.phase));
        self.job.set_status(match (end, failed) {
            (End::Complete, _) => Status::Ok,
            (_, Some(failure)) => error(failure),
            (_, None) => Status::error(format!("{end:?}")),
        });
        self.job.end_with_timestamp(at);
    }
}

/// The stages that a transfer is in.
fn stages(transfer: &Transfer) -> Vec<Stage> {
    match transfer.phase() {
        TransferPhase::Listing => vec![Stage::Stat],
        TransferPhase::BetweenAttempts if transfer.unrecorded_attempt().is_some() => {
            vec![Stage::Plan]
        }
        TransferPhase::BetweenAttempts => vec![Stage::Backoff],
        TransferPhase::Preparing => vec![Stage::Prepare],
        TransferPhase::Running => {
            let nodes = transfer.destinations().take(NODES_MAX);
            let stage = |one| of_destination(transfer, one);
            nodes.filter_map(stage).collect()
        }
        TransferPhase::Ending => vec![Stage::End],
        TransferPhase::Over => Vec::new(),
    }
}

fn of_destination(transfer: &Transfer, destination: &Destination) -> Option<Stage> {
    let name = &destination.location.node;
    if destination.phase != DestinationPhase::InProgress || transfer.stalled(name).is_some() {
        return None;
    }
    let node = node_of(name).to_owned();
    Some(match destination.progress.state() {
        State::Verifying | State::Verified => Stage::Verify(node),
        _ => Stage::Transfer(node),
    })
}

/// Why a node has no copy yet.
fn failure(transfer: &Transfer, node: &str) -> Option<Failure> {
    let mut all = transfer.destinations();
    let one = all.find(|one| node_of(&one.location.node) == node)?;
    let in_attempt = || transfer.stalled(&one.location.node);
    of_phase(&one.phase).cloned().or_else(in_attempt)
}

fn of_phase(phase: &DestinationPhase) -> Option<&Failure> {
    match phase {
        DestinationPhase::Retrying(failure) | DestinationPhase::Failed(failure) => Some(failure),
        DestinationPhase::InProgress | DestinationPhase::Verified { .. } => None,
    }
}

fn error(failure: &Failure) -> Status {
    let text = format!("{}: {}", failure.reason, failure.message);
    Status::error(truncate(&text))
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, time::Duration};

    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
    use weft_proto::agent::v1::{ProgressResponse, StatResponse};
    use weft_transfer::{Call, Command, Input};

    use super::*;
    use crate::controllers::{job::resolve::resolve, membership::Membership, tests::scenario};

    const BYTES: u64 = 100;

    /// A transfer to n2 and n3 whose agents answer a second later, and what was traced.
    struct Traced {
        transfer: Transfer,
        commands: VecDeque<Command>,
        seconds: u64,
        trace: JobTrace,
        exporter: InMemorySpanExporter,
        _provider: SdkTracerProvider,
    }

    impl Traced {
        fn new() -> Self {
            let cache = scenario::cache(3);
            let job = scenario::job("minilm");
            let request = resolve(&job, &cache, &Membership::of(&cache), 1).unwrap();
            let (transfer, commands) = Transfer::begin(request.spec);
            let exporter = InMemorySpanExporter::default();
            let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone());
            let provider = provider.build();
            let tracer = provider.tracer("test");
            let key = scenario::minilm();
            let begun = SystemTime::UNIX_EPOCH;
            let trace = JobTrace::begin(tracer, &key, &request.fabric, begun);
            let mut traced = Self {
                transfer,
                commands: commands.into(),
                seconds: 0,
                trace,
                exporter,
                _provider: provider,
            };
            traced.trace.observe(&traced.transfer, begun);
            traced
        }

        fn step(&mut self, input: Input) {
            self.seconds += 1;
            let now = Duration::from_secs(self.seconds);
            let (transfer, commands) = self.transfer.clone().step(now, input);
            self.transfer = transfer;
            self.commands.extend(commands);
            let at = SystemTime::UNIX_EPOCH + now;
            self.trace.observe(&self.transfer, at);
        }

        /// Answers all commands but those that ask for progress.
        fn answer(&mut self) {
            while let Some(command) = self.commands.pop_front() {
                let answer = match command {
                    Command::Stat { .. } => Input::Stat(Ok(StatResponse {
                        files: 1,
                        bytes: BYTES,
                        ..StatResponse::default()
                    })),
                    Command::RecordAttempt { attempt } => Input::AttemptRecorded { attempt },
                    Command::Call {
                        call: Call::WatchProgress,
                        ..
                    } => continue,
                    Command::Call {
                        node,
                        attempt,
                        call,
                    } => Input::Called {
                        node,
                        attempt,
                        call,
                        result: Ok(()),
                    },
                };
                self.step(answer);
            }
        }

        fn progress(&mut self, node: &str, state: State) {
            let progress = ProgressResponse {
                state: state.into(),
                bytes: BYTES,
                bytes_total: BYTES,
                reason: "DigestMismatch".to_owned(),
                message: "of model.bin\n\"x\"".to_owned(),
                digest: "d1".to_owned(),
                ..ProgressResponse::default()
            };
            self.step(Input::Progress {
                node: node.to_owned(),
                attempt: self.transfer.attempt(),
                progress: Box::new(progress),
            });
        }

        /// The spans by name and node, in the order in which they ended.
        fn spans(&self) -> Vec<(String, SpanData)> {
            let spans = self.exporter.get_finished_spans().unwrap();
            let named = |span: SpanData| {
                let mut node = span.attributes.iter();
                let node = node.find(|it| it.key.as_str() == "k8s.node.name");
                let node = node.map_or_else(String::new, |it| format!(" {}", it.value));
                (format!("{}{node}", span.name), span)
            };
            spans.into_iter().map(named).collect()
        }
    }

    #[test]
    fn a_job_has_a_span_and_its_stages_have_spans_below_it() {
        let mut traced = Traced::new();
        traced.answer();
        for node in ["n2", "n3"] {
            traced.progress(node, State::Transferring);
            traced.progress(node, State::Verifying);
            traced.progress(node, State::Verified);
        }
        traced.progress("n1", State::Verified);
        while !traced.transfer.is_over() {
            traced.step(Input::Woken);
            traced.answer();
        }
        assert!(traced.transfer.is_complete());
        let spans = traced.spans();
        let names: Vec<&str> = spans.iter().map(|(name, _)| &**name).collect();
        assert_eq!(
            names[..7],
            [
                "stat",
                "plan",
                "prepare",
                "transfer n2",
                "verify n2",
                "transfer n3",
                "verify n3"
            ]
        );
        assert_eq!(names.last(), Some(&"TransferJob"));
        let (job, stages) = spans.split_last().unwrap();
        assert_eq!(job.1.status, Status::Ok);
        for (name, span) in stages {
            assert_eq!(span.parent_span_id, job.1.span_context.span_id(), "{name}");
            assert!(span.start_time >= job.1.start_time && span.end_time <= job.1.end_time);
        }
        let took = |at: usize| {
            let (_, span) = &spans[at];
            span.end_time
                .duration_since(span.start_time)
                .unwrap()
                .as_secs()
        };
        // Verifying is followed by Verified a second later.
        assert_eq!((took(0), took(4)), (1, 1));
    }

    #[test]
    fn a_node_that_fails_has_the_reason_and_what_is_dropped_ends() {
        let mut traced = Traced::new();
        traced.answer();
        traced.progress("n2", State::Failed);
        let spans = traced.spans();
        let (name, span) = spans.last().unwrap();
        assert_eq!(name, "transfer n2");
        let reason = Status::error("DigestMismatch: of model.bin\n\"x\"");
        assert_eq!(span.status, reason);
        // As when another operator takes the lead.
        let Traced {
            trace,
            exporter,
            _provider,
            ..
        } = traced;
        drop(trace);
        let spans = exporter.get_finished_spans().unwrap();
        assert!(spans.iter().any(|span| span.name == "TransferJob"));
    }
}
