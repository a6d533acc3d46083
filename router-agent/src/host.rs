//! `router-agent frontend`: the reference frontend as a process of its own.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use router_agent::frontend::traffic::Traffic;
use router_agent::frontend::{Hardware, ModelPlan, Reference};
use scheduler::busy::Thresholds;
use scheduler::facade;
use schemas::{Endpoint, Name};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::CliError;

/// Flags of `frontend`.
#[derive(Debug, Args)]
pub struct Host {
    /// Where to listen. Nobody is asked for a token: keep it on loopback.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// A model to host; repeat for several.
    #[arg(long = "model", value_name = "NAME", default_value = "mock-model")]
    pub models: Vec<Name>,
    /// Dynamo endpoint that the workers belong to.
    #[arg(
        long,
        value_name = "NAMESPACE/COMPONENT/ENDPOINT",
        default_value = "dynamo/backend/generate"
    )]
    pub endpoint: Endpoint,
    /// Workers of each model.
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub workers: u64,
    /// KV blocks of each worker, of 16 tokens each.
    #[arg(long, value_name = "NUMBER", default_value_t = 320)]
    pub kv_blocks: u32,
    /// Prefill speed of each worker, in tokens per second.
    #[arg(long, value_name = "NUMBER", default_value_t = 40_000.0)]
    pub prefill_rate: f64,
    /// Time for one output token, in milliseconds.
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    pub decode_ms: u64,
    /// Requests per second that it asks itself, per model: prompts with shared beginnings. 0 = none.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0)]
    pub traffic: f64,
}

impl Host {
    /// Serves until stopped.
    ///
    /// # Errors
    /// [`CliError`].
    pub async fn run(&self) -> Result<(), CliError> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let frontend = Reference::new(Thresholds::default());
        for model in &self.models {
            let plan = ModelPlan {
                workers: self.workers,
                hardware: Hardware {
                    kv_blocks: self.kv_blocks,
                    prefill_tokens_per_s: self.prefill_rate,
                    decode_per_token: Duration::from_millis(self.decode_ms),
                    ..Hardware::default()
                },
                ..ModelPlan::new(model.clone(), self.endpoint.clone())
            };
            frontend.host(&plan)?;
            if self.traffic > 0.0 {
                let traffic = Traffic {
                    requests_per_s: self.traffic,
                    ..Traffic::gentle(model.clone())
                };
                traffic.start(&frontend);
            }
        }
        let switch = std::env::var(facade::ADMIN_SWITCH).ok();
        let disabled = facade::is_disabled(switch.as_deref());
        let listening = frontend.listen(self.listen, disabled).await;
        let address = listening.map_err(|source| CliError::Listen {
            address: self.listen,
            source,
        })?;
        tracing::info!(%address, models = self.models.len(), facade = !disabled, "serving");
        let stopped = tokio::select! {
            _ = terminate.recv() => true,
            _ = interrupt.recv() => true,
            () = frontend.ended() => false,
        };
        if !frontend.stop().await {
            tracing::warn!("some tasks did not stop in time");
        }
        if stopped {
            Ok(())
        } else {
            Err(CliError::Ended)
        }
    }
}
