//! The HTTP API: routes, layers, and what every handler shares.
//!
//! Owns: which path leads where. Paths match exactly: `//router_policy`, `/router_policy/` and `/ROUTER_POLICY` are not
//! routes. Never does: decide or judge; handlers translate between HTTP and [`crate::writer`] and [`crate::projection`].

pub mod audit;
pub mod body;
pub mod convergence;
pub mod count;
mod described;
pub mod events;
pub mod export;
pub mod facade;
mod files;
pub mod fresh;
pub mod health;
pub mod history;
pub mod layers;
pub mod log;
pub mod openapi;
pub mod operations;
pub mod parameters;
pub mod pieces;
mod places;
pub mod policies;
pub mod problem;
pub mod query;
pub mod server;
mod socket;
pub mod thresholds;
pub mod validate;
pub mod views;
pub mod weight;
pub mod writes;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{MethodRouter, get, post, put};
use event_log::{EventLog, StatusBoard};
use schemas::api::ErrorCode;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::projection::Projection;
use crate::writer::Writer;
use problem::Problem;

/// What every handler shares.
#[derive(Clone)]
pub struct App(Arc<Parts>);

/// The parts of a service.
pub struct Parts {
    /// How it runs.
    pub config: Config,
    /// What the log says.
    pub projection: Arc<Projection>,
    /// What the agents say.
    pub fleet: Arc<Fleet>,
    /// Takes writes.
    pub writer: Arc<Writer>,
    /// Takes reports.
    pub board: Arc<dyn StatusBoard>,
    /// The log, for questions that only its leader may answer.
    pub log: Arc<dyn EventLog>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Open streams.
    pub streams: Arc<Semaphore>,
    /// What event streams share.
    pub pieces: pieces::Pieces,
    /// Writers that wait for the fleet.
    pub waiting: count::Count,
    /// Memory for answers that clients have not taken yet, in KiB.
    pub weight: Arc<Semaphore>,
    /// Cancelled when the service stops.
    pub stop: CancellationToken,
}

impl App {
    /// Of these parts.
    #[must_use]
    pub fn new(parts: Parts) -> App {
        App(Arc::new(parts))
    }
}

impl std::ops::Deref for App {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Path and handlers of every route.
type Routes = Vec<(&'static str, MethodRouter<App>)>;

fn facade_routes() -> Routes {
    let thresholds = || get(thresholds::list).post(thresholds::set);
    vec![
        ("/router_policy", get(facade::list).patch(facade::patch)),
        ("/router_policy/busy_threshold", thresholds()),
        ("/busy_threshold", thresholds()),
    ]
}

fn own_routes() -> Routes {
    vec![
        ("/v1/policies", get(policies::list)),
        ("/v1/policies:validate", post(validate::validate)),
        (
            "/v1/policies/{id}",
            get(policies::get).patch(policies::patch),
        ),
        ("/v1/policies/{id}/history", get(history::history)),
        ("/v1/policies/{id}/at", get(history::at)),
        ("/v1/policies/{id}/diff", get(history::diff)),
        ("/v1/policies/{id}/revert", post(history::revert)),
        ("/v1/changes", post(policies::change)),
        ("/v1/parameters", get(parameters::list)),
        ("/v1/parameters/{name}", put(parameters::register)),
        ("/v1/effective", get(policies::effective)),
        ("/v1/audit", get(audit::audit)),
        ("/v1/events", get(events::events)),
        ("/v1/convergence", get(convergence::convergence)),
        ("/v1/status", post(convergence::report)),
        ("/v1/log/head", get(log::head)),
        ("/v1/log/tails", get(log::tails)),
        ("/v1/log/at", get(log::at)),
        ("/v1/log/next", get(log::next)),
        ("/livez", get(health::livez)),
        ("/readyz", get(health::readyz)),
        ("/metrics", get(health::metrics)),
        ("/openapi.json", get(openapi::serve)),
        ("/", get(health::page)),
    ]
}

/// How many paths there are, with the façade: for the test that none is missing from the OpenAPI document.
#[must_use]
pub fn route_count() -> usize {
    own_routes().len() + facade_routes().len()
}

/// The whole API.
pub fn router(app: &App) -> Router {
    let mut routes = own_routes();
    if !app.config.facade_disabled {
        routes.extend(facade_routes());
    }
    let router = routes
        .into_iter()
        .fold(Router::new(), |router, (path, handlers)| {
            router.route(path, handlers)
        })
        .method_not_allowed_fallback(no_such_method)
        .fallback(no_such_route);
    layers::add(router, app).with_state(app.clone())
}

async fn no_such_route(method: Method, uri: Uri) -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        ErrorCode::RouteNotFound,
        format!("Route not found: {method} {}", uri.path()),
    )
}

async fn no_such_method(method: Method, uri: Uri) -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::MethodNotAllowed,
        format!("{} does not take {method}", uri.path()),
    )
}
