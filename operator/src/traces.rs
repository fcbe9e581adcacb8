//! Traces of jobs, sent to a collector by OTLP (OpenTelemetry protocol 1.x, over gRPC).

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider},
};

use crate::NAME;

/// A collector that does not answer in this time loses the spans of one request; jobs never wait for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What is not sent yet when the process ends has this time.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// Sends spans in batches, from a thread of its own.
#[derive(Debug)]
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends to a collector, such as `http://collector.monitoring:4317`. Call it within the runtime.
    pub(crate) fn to(endpoint: &str) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(ANSWER_WITHIN)
            .build()?;
        let resource = Resource::builder().with_service_name(NAME).with_attribute(
            opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        );
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build());
        Ok(Self(provider.build()))
    }

    /// Makes the spans.
    pub(crate) fn tracer(&self) -> SdkTracer {
        self.0.tracer(NAME)
    }

    /// Sends what is left, and waits for it a little.
    pub(crate) async fn flush(self) {
        let flushed =
            tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(FLUSH_WITHIN)).await;
        if let Ok(Err(error)) = flushed {
            tracing::warn!("some traces were not sent: {error}");
        }
    }
}

/// Parses `--otlp-endpoint`.
pub(crate) fn endpoint(text: &str) -> Result<String, String> {
    let uri: axum::http::Uri = text.parse().map_err(|error| format!("{error}"))?;
    match uri.scheme_str() {
        Some("http") => Ok(text.to_owned()),
        _ => Err("it must begin with http://: name a collector in the cluster".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use opentelemetry::trace::Tracer as _;
    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    };
    use tokio::{net::TcpListener, sync::mpsc};
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::{Request, Response, Status, transport::Server};

    use super::*;

    /// Hands on what it is sent.
    struct Collector(mpsc::UnboundedSender<ExportTraceServiceRequest>);

    #[tonic::async_trait]
    impl TraceService for Collector {
        async fn export(
            &self,
            request: Request<ExportTraceServiceRequest>,
        ) -> Result<Response<ExportTraceServiceResponse>, Status> {
            self.0.send(request.into_inner()).unwrap();
            Ok(Response::new(ExportTraceServiceResponse::default()))
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_span_comes_to_the_collector_when_the_process_ends() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (told, mut received) = mpsc::unbounded_channel();
        let server = Server::builder().add_service(TraceServiceServer::new(Collector(told)));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let traces = Traces::to(&endpoint).unwrap();
        drop(traces.tracer().start("TransferJob"));
        traces.flush().await;
        let request = received.recv().await.unwrap();
        let spans = &request.resource_spans[0];
        let resource = format!("{:?}", spans.resource);
        assert!(resource.contains("weft-operator"), "{resource}");
        assert_eq!(spans.scope_spans[0].spans[0].name, "TransferJob");
    }

    #[test]
    fn an_endpoint_is_an_address_of_http() {
        assert!(endpoint("http://collector:4317").is_ok());
        for wrong in ["collector:4317", "https://collector:4317", "http://", ""] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
