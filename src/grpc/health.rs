//! grpc.health.v1: SERVING while the node is ready, for the server as a whole and for the service.

use crate::vitals::{Readiness, Vitals};
use std::sync::Arc;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};

const SERVICES: [&str; 2] = ["", "inferencecache.v1alpha1.InferenceCache"];

/// The service, and a future that drives it and never ends.
pub(super) async fn service(
    vitals: Arc<Vitals>,
) -> (HealthServer<impl Health>, impl Future<Output = ()> + Send + 'static) {
    let (reporter, service) = tonic_health::server::health_reporter();
    let mut readiness = vitals.readiness();
    let first = status(&readiness.borrow_and_update());
    for name in SERVICES {
        reporter.set_service_status(name, first).await;
    }
    let drive = async move {
        while readiness.changed().await.is_ok() {
            let now = status(&readiness.borrow_and_update());
            for name in SERVICES {
                reporter.set_service_status(name, now).await;
            }
        }
        std::future::pending().await
    };
    (service, drive)
}

fn status(readiness: &Readiness) -> ServingStatus {
    match readiness {
        Readiness::Ready => ServingStatus::Serving,
        Readiness::Unready(_) => ServingStatus::NotServing,
    }
}
