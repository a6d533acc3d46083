//! A frontend's answers: whatever it lists, the agent's loop takes it in, plans, and makes a report that the service takes.

use std::sync::Arc;
use std::time::Duration;

use router_agent::dynamo_http::listing;
use router_agent::memory::FrontendMemory;
use router_agent::reconcile::course::Now;
use router_agent::reconcile::{FrontendLoop, Input, Mode, Output, Settings};
use router_agent::target::{Applied, Listing, TargetError};
use schemas::state::{Reading, State};
use schemas::status::{AgentStatus, LogFollowing, LogState};
use schemas::{AgentId, FrontendId, Name, Position, Subject, Timestamp};
use service::http::body::parse;

const POLICY: &[u8] = include_bytes!("../../../migrations/golden/v1/policies.changed.json");

/// Bound: what a report repeats of a frontend's own words, in bytes.
const WORDS_MAX: usize = 24_000;

/// Parts: what is answered to `/router_policy`, then to thresholds, and the same again for later listings.
pub(crate) fn check(input: &[u8]) {
    let parts = crate::parts(input);
    let settings = Settings {
        agent: AgentId(name("agent")),
        frontend: FrontendId(name("http://127.0.0.1:8000")),
        group: None,
        mode: Mode::Enforce,
        poll_interval: Duration::from_secs(1),
    };
    let mut frontend = FrontendLoop::new(settings, FrontendMemory::default());
    let mut outputs = frontend.step(now(0), Input::Desired(Some(Arc::new(wanted()))));
    for (index, pair) in parts.chunks(2).enumerate().take(4) {
        let listed = listing(
            pair.first().filter(|part| !part.is_empty()).copied(),
            pair.get(1).copied(),
        );
        let at = now(index as u64 + 1);
        outputs.extend(frontend.step(at, Input::Tick));
        for output in std::mem::take(&mut outputs) {
            if let Some(input) = answer(output, &listed) {
                outputs.extend(frontend.step(at, input));
            }
        }
        let status = report(&frontend);
        let json = serde_json::to_vec(&status).expect("a report encodes");
        let read = parse::<AgentStatus>(&json).expect("a report that the service takes");
        assert_eq!(read, status);
        let words = status.frontends[0].error.as_ref().map_or(0, String::len);
        assert!(words <= WORDS_MAX, "{words} bytes of words");
    }
}

/// What the frontend does: it lists what it lists, and takes every change.
fn answer(output: Output, listed: &Result<Listing, TargetError>) -> Option<Input> {
    match output {
        Output::List { number } => Some(Input::Listed {
            number,
            outcome: listed.clone(),
        }),
        Output::Apply {
            router, expected, ..
        } => Some(Input::Answered {
            router,
            outcome: Ok(Applied {
                revision: expected,
                parameters: (listed.as_ref().ok())
                    .and_then(|listing| listing.routers.get(&router)?.configuration.clone())
                    .map(|configuration| configuration.parameters)
                    .unwrap_or_default(),
            }),
        }),
        Output::SetThresholds { model, .. } => Some(Input::ThresholdsAnswered {
            model,
            outcome: Ok(()),
        }),
        Output::Remember { .. } | Output::Forget { .. } | Output::RememberThresholds { .. } => None,
    }
}

fn wanted() -> State {
    let value: serde_json::Value = serde_json::from_slice(POLICY).expect("golden");
    let subject = Subject::from_log(value["subject"].as_str().expect("golden"));
    let mut state = State::default();
    let reading = migrations::read(&subject, POLICY);
    assert!(matches!(reading, Reading::Known(_)));
    state.evolve(Position(1), &subject, POLICY, &reading);
    state
}

fn report(frontend: &FrontendLoop) -> AgentStatus {
    AgentStatus {
        agent: AgentId(name("agent")),
        group: None,
        version: "test".to_owned(),
        started_at: Timestamp::from_unix_ms(1),
        reported_at: Timestamp::from_unix_ms(1),
        report: 1,
        interval_ms: 5_000,
        leaving: false,
        log: LogFollowing {
            state: LogState::Following,
            log_id: None,
            position: Position(1),
            error: None,
        },
        frontends: vec![frontend.status()],
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn now(seconds: u64) -> Now {
    Now {
        elapsed: Duration::from_secs(seconds * 20),
        wall: Timestamp::from_unix_ms(1_700_000_000_000 + seconds * 20_000),
        draw: 0.5,
    }
}
