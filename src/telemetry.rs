//! Logs and traces. Logs go to standard error; spans leave the process only when an OTLP endpoint is configured.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::io::IsTerminal;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Keeps the exporter; [`Telemetry::stop`] sends what it still holds.
#[derive(Debug)]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

/// Why logs or traces could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The log filter is broken.
    #[error("--log-level: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// The exporter could not be built.
    #[error("--otlp-endpoint: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    /// Somebody was here before.
    #[error("logging is already set up: {0}")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

impl Telemetry {
    /// Sets up logs, and traces if there is somewhere to send them. Needs a Tokio runtime for the exporter.
    pub fn start(
        format: &str,
        level: &str,
        otlp_endpoint: Option<&str>,
        node_name: &str,
    ) -> Result<Self, TelemetryError> {
        let filter = filter(level)?;
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let lines = match format {
            "json" => lines.json().with_filter(filter).boxed(),
            _ => lines.with_ansi(std::io::stderr().is_terminal()).with_filter(filter).boxed(),
        };
        let traces = otlp_endpoint.map(|endpoint| exporter(endpoint, node_name)).transpose()?;
        let spans = traces.as_ref().map(|provider| {
            let wanted = Targets::new().with_target("prefixd", tracing::Level::DEBUG);
            tracing_opentelemetry::layer().with_tracer(provider.tracer("prefixd")).with_filter(wanted)
        });
        tracing_subscriber::registry().with(lines).with(spans).try_init()?;
        Ok(Self { traces })
    }

    /// Sends what is still held. Blocks for a bounded time.
    pub fn stop(self) {
        if let Some(provider) = self.traces
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// The filter as said, with the Raft library's account of its own doings left out unless it is asked for by name: what
/// an operator needs of it, our own lines say.
fn filter(level: &str) -> Result<EnvFilter, TelemetryError> {
    let filter = EnvFilter::try_new(level)?;
    Ok(if level.contains("openraft") { filter } else { filter.add_directive("openraft=off".parse()?) })
}

fn exporter(endpoint: &str, node_name: &str) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let resource = Resource::builder()
        .with_service_name("prefixd")
        .with_attribute(opentelemetry::KeyValue::new("service.instance.id", node_name.to_owned()))
        .build();
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}
