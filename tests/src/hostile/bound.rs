//! How much memory an attack may cost: what the product says that it holds, times the clients. Nothing here is fitted to what
//! was measured; the limits are the product's own ([`service::Config`] and the constants named beside them).

use super::stage::Against;

/// What the process may hold for an attack besides its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// A body per connection, while it is read and judged.
    Bodies,
    /// Answers that nobody takes: large ones up to the service's limit, small ones per connection.
    Answers,
    /// Reports of agents, on the board and in the fleet.
    Reports,
    /// What writing fills: the cache of the local store, and the embedded log's journal, write buffer and cache.
    Log,
}

/// Allocator, and what the other client and a few hundred requests at work take, whatever the attack.
const ORDINARY_KIB: u64 = 32 << 10;
/// `HEAD_BYTES_MAX` of the service and of the frontend, read and written ahead, and a task.
const CONNECTION_KIB: u64 = 16 + 16 + 16;
/// `CONNECTIONS_MAX` of the frontend.
const FRONTEND_CONNECTIONS_MAX: u64 = 4_096;
/// `CONNECTIONS_MAX` of an agent's health port, each with a head of 8 KiB and a task.
const HEALTH_CONNECTIONS_MAX: u64 = 256;
const HEALTH_CONNECTION_KIB: u64 = 8 + 16;
/// `LIGHT_BYTES` of the service.
const LIGHT_KIB: u64 = 64;
/// Of the board and of the fleet: as values some six times as much as in JSON.
const REPORTS_KIB: u64 = 2 * 6 * (schemas::status::LONG_REPORTS_BYTES_MAX as u64 >> 10);
/// Of the embedded log: a write buffer, another one that is being flushed (64 MiB each), and a cache.
const LOG_KIB: u64 = (64 + 64 + 16) << 10;

/// In MiB, beyond what the process took before.
pub(super) fn of(against: Against, clients: usize, held: &[Held]) -> u64 {
    let address = ([127, 0, 0, 1], 0).into();
    let config = service::Config::new(address, "");
    let clients = clients as u64;
    let (most, connection) = match against {
        Against::Service => (config.connections_max as u64, CONNECTION_KIB),
        Against::Poor => (super::stage::FEW_FILES as u64, CONNECTION_KIB),
        Against::Agent => (HEALTH_CONNECTIONS_MAX, HEALTH_CONNECTION_KIB),
        Against::Frontend => (FRONTEND_CONNECTIONS_MAX, CONNECTION_KIB),
    };
    let connections = clients.min(most);
    // Read, and as values.
    let body = 3 * (service::http::body::BODY_BYTES_MAX as u64 >> 10);
    let report = 3 * (service::http::body::STATUS_BYTES_MAX as u64 >> 10);
    let others = held.iter().map(|held| match held {
        Held::Bodies => connections * body,
        Held::Answers => u64::from(config.answers_kib_max) + connections * LIGHT_KIB,
        Held::Reports => REPORTS_KIB + super::attacks::REPORTS_AT_ONCE as u64 * report,
        Held::Log => (config.cache_bytes >> 10) + LOG_KIB,
    });
    (ORDINARY_KIB + connections * connection + others.sum::<u64>()) >> 10
}
