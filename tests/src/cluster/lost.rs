//! The log itself is lost: put back to an older state, or deleted and made again. Nobody may follow it silently.

use std::process::Command;

use serde_json::Value;

use super::Settings;
use super::cases::{begin, copy_folder, kill_all, load, number, put_back, start_all};
use super::ledger::settle;
use super::stage::{PATIENCE, STREAM, Setup, Stage};
use crate::binaries::binary;
use crate::stage::Service;
use crate::wait::wait_until;

pub(super) async fn all_older(settings: Settings) {
    let name = "all-stores-older";
    let (mut stage, first) = begin(&settings, name, &Setup::default()).await;
    settle(&stage, &first, name, false).await;
    kill_all(&mut stage);
    let folders: Vec<_> = stage
        .servers
        .iter()
        .map(|one| one.folder().to_path_buf())
        .collect();
    for folder in &folders {
        copy_folder(&folder.join("data"), &folder.join("older"));
    }
    start_all(&mut stage);
    let second = load(&stage, settings.seed + 1);
    second.goes_on(60, PATIENCE).await;
    settle(&stage, &second, name, false).await;
    let known = number(&stage.info().await.expect("the stream")["state"]["last_seq"]);

    kill_all(&mut stage);
    for folder in &folders {
        put_back(&folder.join("older"), &folder.join("data"));
    }
    start_all(&mut stage);
    // Running services notice that the log ends before what they have read.
    for service in 0..2 {
        refused(&stage, service, &["ends at position"]).await;
    }
    // One that starts later, when others have written past that place, notices that another record stands there.
    stage.services[1].kill();
    let mut fresh = another_service(&stage).await;
    let mut last = 0;
    while last <= known {
        let body = serde_json::json!({"changes": [{"kind": "worker_selection",
            "scope": {"model": "later"}, "parameters": {"router_temperature": 0.25}}]});
        let answer = fresh
            .http
            .post("/v1/changes", &body)
            .await
            .expect("an answer")
            .expect(200);
        last = number(&answer.json["position"]);
    }
    stage.services[1].launch();
    refused(
        &stage,
        1,
        &["is not the one that was read there", "ends at position"],
    )
    .await;
    // Nobody's refusal wrote anything.
    let head = number(&stage.info().await.expect("the stream")["state"]["last_seq"]);
    assert_eq!(head, last);
    fresh.kill();
    adopt(&mut stage).await;
    stage.works().await;
    stage.strike().await;
}

pub(super) async fn made_anew(settings: Settings) {
    let name = "stream-made-anew";
    let (mut stage, first) = begin(&settings, name, &Setup::default()).await;
    settle(&stage, &first, name, false).await;
    let what = format!("STREAM.DELETE.{STREAM}");
    stage.admin.ask(&what, &Value::Null).await.expect("deleted");
    for service in 0..2 {
        refused(&stage, service, &["there is no log here"]).await;
    }
    assert!(
        stage.info().await.is_err(),
        "nobody made it again by itself"
    );
    let mut fresh = another_service(&stage).await;
    stage.whole().await;
    for service in 0..2 {
        refused(&stage, service, &["has another identity"]).await;
    }
    let head = number(&stage.info().await.expect("the stream")["state"]["last_seq"]);
    assert_eq!(head, 0, "nothing of the old log landed in the new one");
    fresh.kill();
    adopt(&mut stage).await;
    stage.works().await;
    stage.strike().await;
}

/// Waits until a service refuses the log with one of these words, and holds that it takes no change then.
async fn refused(stage: &Stage, service: usize, words: &[&str]) {
    let ready = wait_until("a service refuses the log", PATIENCE, async || {
        let ready = stage.service(service).get("/readyz").await?;
        let said = words.iter().any(|words| ready.text.contains(words));
        if ready.status == 503 && ready.json["log"] == "foreign" && said {
            Ok(ready)
        } else {
            Err(ready.text)
        }
    })
    .await;
    assert!(ready.text.contains("router-policy adopt"), "{}", ready.text);
    let answer = stage
        .change(service, "refused", 0.1)
        .await
        .expect("an answer")
        .expect(503);
    assert_eq!(answer.code(), "foreign_log", "{}", answer.text);
    assert_eq!(answer.json["outcome"], "not_applied", "{}", answer.text);
    let reading = stage
        .service(service)
        .get("/v1/policies")
        .await
        .expect("an answer");
    assert_eq!(reading.status, 200, "what was read stays readable");
}

/// A third service that has never met a log.
async fn another_service(stage: &Stage) -> Service {
    let mut service = Service::new("fresh", &stage.folder, &stage.urls).with(&["--replicas", "3"]);
    service.start().await;
    service
}

/// As an operator does it: stop, adopt, start.
async fn adopt(stage: &mut Stage) {
    for service in &mut stage.services {
        service.kill();
        let out = Command::new(binary("router-policy"))
            .args(["adopt", "--data"])
            .arg(service.folder())
            .output()
            .expect("it runs");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        service.start().await;
    }
}
