//! Writing one family of samples. Names, helps and label sets are spelled at the call, so that a family is one place.

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;

/// Labels of one sample.
pub(super) type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// One gauge without labels.
pub(super) fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

/// One counter without labels; the encoder adds `_total`.
pub(super) fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)?.encode_counter::<NoLabelSet, _, f64>(&value, None)
}

/// A family of gauges.
pub(super) fn gauges<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<'a, N>, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        family.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// A family of counters; the encoder adds `_total`.
pub(super) fn counters<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<'a, N>, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in samples {
        family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
    }
    Ok(())
}

/// Buckets as the encoder wants them: the count of each bucket alone, the last one without bound.
pub(super) struct Buckets {
    /// (upper bound in seconds, observations in this bucket alone).
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all observations in seconds.
    pub sum_seconds: f64,
}

/// A family of histograms.
pub(super) fn histograms<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<'a, N>, Buckets)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, Buckets { buckets, sum_seconds }) in samples {
        let count = buckets.iter().map(|(_, n)| n).sum();
        family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum_seconds, count, &buckets, None)?;
    }
    Ok(())
}
