//! The controller's HTTP edge on 8081. This release binds the port and knows no path on it yet.

use axum::Router;

/// The routes of the internal port.
pub fn routes() -> Router {
    Router::new()
}
