//! Moves the loop's inputs and outputs: one task per frontend, so that a slow frontend holds up nobody else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use event_log::{ambient, crash};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use schemas::status::FrontendStatus;
use schemas::{AgentId, FrontendId};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::course::Now;
use super::standing::Standing;
use super::{FrontendLoop, Input, Output, Settings};
use crate::remembered::Remembered;
use crate::replica::Followed;
use crate::target::PolicyTarget;

/// Bound: requests to one frontend at a time.
const REQUESTS_MAX: usize = 16;

/// Agents that live beside this one on the same frontends.
pub type Rivals = BTreeMap<FrontendId, AgentId>;

/// Everything that one frontend's task needs.
pub struct Shell {
    /// What the loop is set to.
    pub settings: Settings,
    /// The frontend.
    pub target: Arc<dyn PolicyTarget>,
    /// What is kept on disk.
    pub remembered: Remembered,
    /// What is wanted.
    pub followed: watch::Receiver<Followed>,
    /// Who else is here.
    pub rivals: watch::Receiver<Rivals>,
    /// Where the frontend stands, for reports.
    pub status: watch::Sender<Standing>,
    /// Told when something worth a report has changed.
    pub changed: Arc<Notify>,
    /// When the agent started.
    pub started: Instant,
}

impl Shell {
    /// Runs until told to stop. What is on its way to the frontend then is abandoned; its outcome is found out from the
    /// next process's first listing.
    pub async fn run(mut self, stop: CancellationToken) {
        let kept = self.remembered.load(self.settings.frontend.clone()).await;
        let mut frontend = FrontendLoop::new(self.settings.clone(), kept);
        let permits = Arc::new(Semaphore::new(REQUESTS_MAX));
        let mut requests: FuturesUnordered<BoxFuture<'static, Input>> = FuturesUnordered::new();
        let mut input = Input::Desired(self.followed.borrow_and_update().state.clone());
        loop {
            for output in frontend.step(self.now(), input) {
                if let Some(request) = self.carry_out(output, &permits).await {
                    requests.push(request);
                }
            }
            self.publish(&frontend);
            let wake = self.started.checked_add(frontend.wake_at());
            let wake = wake.unwrap_or_else(|| Instant::now() + Duration::from_secs(3_600));
            input = tokio::select! {
                () = stop.cancelled() => return,
                Some(answer) = requests.next() => answer,
                Ok(()) = self.followed.changed() => {
                    Input::Desired(self.followed.borrow_and_update().state.clone())
                }
                Ok(()) = self.rivals.changed() => {
                    let rivals = self.rivals.borrow_and_update();
                    Input::Rival(rivals.get(&self.settings.frontend).cloned())
                }
                () = tokio::time::sleep_until(wake) => Input::Tick,
            };
        }
    }

    fn now(&self) -> Now {
        Now {
            wall: ambient::now(),
            elapsed: self.started.elapsed(),
            draw: rand::random(),
        }
    }

    async fn carry_out(
        &self,
        output: Output,
        permits: &Arc<Semaphore>,
    ) -> Option<BoxFuture<'static, Input>> {
        let target = self.target.clone();
        let permits = permits.clone();
        let frontend = &self.settings.frontend;
        match output {
            Output::Remember { router, memory } => {
                self.remembered.keep_router(frontend, router, &memory).await;
                None
            }
            Output::Forget { router } => {
                self.remembered.forget_router(frontend, router).await;
                None
            }
            Output::RememberThresholds { model, memory } => {
                self.remembered
                    .keep_thresholds(frontend, &model, &memory)
                    .await;
                None
            }
            Output::List { number } => Some(Box::pin(async move {
                let outcome = target.list().await;
                Input::Listed { number, outcome }
            })),
            Output::Apply {
                router,
                expected,
                patch,
            } => {
                tracing::info!(%frontend, %router, revision = %expected, parameters = patch.len(), "patching a router");
                Some(Box::pin(async move {
                    let _permit = permits.acquire().await;
                    crash::point("agent.remembered");
                    let outcome = target.apply(router, expected, &patch).await;
                    crash::point("agent.applied");
                    Input::Answered { router, outcome }
                }))
            }
            Output::SetThresholds { model, values } => {
                tracing::info!(%frontend, %model, "setting busy thresholds");
                Some(Box::pin(async move {
                    let _permit = permits.acquire().await;
                    crash::point("agent.thresholds_remembered");
                    let outcome = target.set_thresholds(&model, &values).await;
                    crash::point("agent.thresholds_set");
                    Input::ThresholdsAnswered { model, outcome }
                }))
            }
        }
    }

    fn publish(&self, frontend: &FrontendLoop) {
        let standing = frontend.standing();
        let mut worth_a_report = false;
        self.status.send_if_modified(|last| {
            worth_a_report = {
                // A listing that found nothing new is no news.
                last.listed = standing.listed;
                last.status.listed_at = standing.status.listed_at;
                *last != standing
            };
            if worth_a_report {
                tell(&last.status, &standing.status);
                *last = standing;
            }
            true
        });
        if worth_a_report {
            self.changed.notify_one();
        }
    }
}

/// One log line for each frontend or router that came into another state.
fn tell(before: &FrontendStatus, after: &FrontendStatus) {
    let frontend = &after.frontend;
    if before.reachable != after.reachable {
        let error = after.error.as_deref().unwrap_or_default();
        if after.reachable {
            tracing::info!(%frontend, capability = ?after.capability, "frontend reached");
        } else {
            tracing::warn!(%frontend, error, "frontend cannot be listed");
        }
    }
    for router in &after.routers {
        let known = before
            .routers
            .iter()
            .find(|known| known.router_id == router.router_id);
        if known.is_none_or(|known| known.state != router.state || known.drifts != router.drifts) {
            let (id, error) = (
                router.router_id,
                router.error.as_deref().unwrap_or_default(),
            );
            tracing::info!(%frontend, router = %id, position = %router.position, state = ?router.state, drifts = router.drifts, error, "router");
        }
    }
}
