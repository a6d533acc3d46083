//! The Dynamo target against answers as they come over the wire, right and wrong ones.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::time::Duration;

use router_agent::target::TargetError;
use router_agent::{DynamoHttp, PolicyTarget as _, Timeouts};
use schemas::status::Capability;
use schemas::{Name, ParameterName, ParameterValue, Patch, Revision, RouterId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use uuid::Uuid;

const ROUTERS: &str = r#"{"routers":[
 {"router_id":"00000000-0000-0000-0000-000000000001","model":"a b/*","namespace":"dynamo","component":"backend","endpoint":"generate","worker_type":"aggregated",
  "configuration":{"revision":3,"parameters":{"router_temperature":2,"overlap_score_credit":-0.0}},"later":true},
 {"router_id":"00000000-0000-0000-0000-000000000002","model":"m","namespace":"dynamo","component":"backend","endpoint":"generate","worker_type":"decode","configuration":null},
 {"router_id":"00000000-0000-0000-0000-000000000003","model":"m","namespace":"dynamo","component":"backend","endpoint":"generate","worker_type":"draft","configuration":null},
 {"router_id":"00000000-0000-0000-0000-000000000004","model":"m\n","namespace":"dynamo","component":"backend","endpoint":"generate","worker_type":"decode","configuration":null}]}"#;
const THRESHOLDS: &str = r#"{"thresholds":[{"model":"m","active_decode_blocks_threshold":0.0,"active_prefill_tokens_threshold":18446744073709551615,"active_prefill_tokens_threshold_frac":null}]}"#;

/// Serves fixed raw answers by `METHOD path`; unknown ones are 404. Requests' heads and bodies come out of the channel.
async fn serve(
    answers: BTreeMap<&'static str, Vec<u8>>,
) -> (DynamoHttp, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (seen, requests) = mpsc::unbounded_channel();
    let tasks = event_log::ambient::Tasks::new();
    tasks.start("server", async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            let mut part = [0; 4_096];
            // One read holds a whole small request once the blank line and the body's closing brace are in.
            loop {
                let read = stream.read(&mut part).await.unwrap();
                head.extend_from_slice(&part[..read]);
                let text = String::from_utf8_lossy(&head);
                let complete =
                    text.contains("\r\n\r\n") && (text.starts_with("GET") || text.ends_with('}'));
                if read == 0 || complete {
                    break;
                }
            }
            let text = String::from_utf8_lossy(&head).into_owned();
            let line: Vec<&str> = text.split(' ').take(2).collect();
            let answer = (answers.get(line.join(" ").as_str()).cloned())
                .unwrap_or_else(|| http(404, r#"{"message":"Route not found","code":404}"#));
            let _ = seen.send(text);
            if answer.is_empty() {
                // Silence: hold the connection until the client gives up.
                let _ = stream.read(&mut part).await;
                continue;
            }
            let _ = stream.write_all(&answer).await;
        }
    });
    let timeouts = Timeouts {
        connect: Duration::from_secs(2),
        request: Duration::from_millis(500),
    };
    (DynamoHttp::new(&url, timeouts).unwrap(), requests)
}

fn http(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()).into_bytes()
}

fn id(number: u128) -> RouterId {
    RouterId(Uuid::from_u128(number))
}

#[tokio::test]
async fn a_listing_keeps_what_can_be_addressed_and_names_the_rest() {
    let (target, _requests) = serve(BTreeMap::from([
        ("GET /router_policy", http(200, ROUTERS)),
        ("GET /router_policy/busy_threshold", http(200, THRESHOLDS)),
    ]))
    .await;
    let listing = target.list().await.unwrap();
    assert_eq!(listing.capability, Capability::RouterPolicy);
    let ids: Vec<RouterId> = listing.routers.keys().copied().collect();
    assert_eq!(ids, [id(1), id(2)]);
    let first = &listing.routers[&id(1)];
    assert_eq!(first.key.model.as_str(), "a b/*");
    let configuration = first.configuration.as_ref().unwrap();
    assert_eq!(configuration.revision, Revision(3));
    assert_eq!(
        configuration.parameters.get("router_temperature"),
        Some(&ParameterValue::number(2.0))
    );
    assert!(listing.routers[&id(2)].configuration.is_none());
    assert_eq!(listing.unaddressable.len(), 2);
    assert!(
        listing.unaddressable[0].contains("draft"),
        "{:?}",
        listing.unaddressable
    );
    let thresholds = &listing.thresholds[&Name::new("m").unwrap()];
    assert_eq!(thresholds.len(), 3);
    assert_eq!(
        thresholds.get("active_decode_blocks_threshold"),
        Some(&Some(ParameterValue::number(0.0)))
    );
    assert_eq!(
        thresholds.get("active_prefill_tokens_threshold"),
        Some(&Some(ParameterValue::integer(u64::MAX)))
    );
    assert_eq!(
        thresholds.get("active_prefill_tokens_threshold_frac"),
        Some(&None)
    );
}

#[tokio::test]
async fn older_and_closed_frontends_are_met_as_what_they_are() {
    let (old, mut requests) = serve(BTreeMap::from([
        ("GET /busy_threshold", http(200, THRESHOLDS)),
        ("POST /busy_threshold", http(200, "{}")),
    ]))
    .await;
    assert_eq!(
        old.list().await.unwrap().capability,
        Capability::BusyThresholdOnly
    );
    let values = BTreeMap::from([(
        ParameterName::new("active_decode_blocks_threshold").unwrap(),
        ParameterValue::number(0.5),
    )]);
    old.set_thresholds(&Name::new("m").unwrap(), &values)
        .await
        .unwrap();
    let mut last = String::new();
    while let Ok(request) = requests.try_recv() {
        last = request;
    }
    assert!(
        last.starts_with("POST /busy_threshold ")
            && last.ends_with(r#"{"active_decode_blocks_threshold":0.5,"model":"m"}"#),
        "{last}"
    );
    let (closed, _requests) = serve(BTreeMap::new()).await;
    assert_eq!(closed.list().await.unwrap().capability, Capability::None);
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_is_never_an_empty_listing() {
    let truncated = b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{\"routers\":[".to_vec();
    let endless = [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_vec(),
        vec![b' '; 9 << 20],
    ]
    .concat();
    let cases: [(&str, Vec<u8>); 9] = [
        ("truncated", truncated),
        ("too large", endless),
        ("silent", Vec::new()),
        ("not http", b"hello\r\n\r\n".to_vec()),
        ("not json", http(200, "<html>")),
        ("another shape", http(200, r#"{"data":[]}"#)),
        (
            "bad id",
            http(
                200,
                &ROUTERS.replace("00000000-0000-0000-0000-000000000001", "x"),
            ),
        ),
        ("unavailable", http(503, r#"{"error":"starting"}"#)),
        ("a redirect", http(302, "")),
    ];
    for (case, answer) in cases {
        let (target, _requests) = serve(BTreeMap::from([
            ("GET /router_policy", answer),
            ("GET /router_policy/busy_threshold", http(200, THRESHOLDS)),
        ]))
        .await;
        let listed = target.list().await;
        assert!(
            matches!(listed, Err(TargetError::Transient { .. })),
            "{case}: {listed:?}"
        );
    }
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let target = DynamoHttp::new(&url, Timeouts::default()).unwrap();
    assert!(matches!(
        target.list().await,
        Err(TargetError::Transient { .. })
    ));
}

#[tokio::test]
async fn answers_to_a_patch_are_told_apart_by_status() {
    let taken = r#"{"router_id":"00000000-0000-0000-0000-000000000001","model":"m","namespace":"d","component":"b","endpoint":"g","worker_type":"decode","configuration":{"revision":4,"parameters":{"router_temperature":0.5}}}"#;
    let patch: Patch = [
        (
            ParameterName::new("router_temperature").unwrap(),
            Some(ParameterValue::number(0.5)),
        ),
        (ParameterName::new("overlap_score_credit").unwrap(), None),
    ]
    .into();
    let refused = |status, words: &str| {
        Err(TargetError::Refused {
            status,
            words: words.to_owned(),
        })
    };
    let cases = [
        ("taken", http(200, taken), Ok(Revision(4))),
        (
            "refused",
            http(422, r#"{"error":"invalid policy parameters: x"}"#),
            refused(422, "invalid policy parameters: x"),
        ),
        ("malformed", http(400, "plain"), refused(400, "plain")),
        ("too large", http(413, ""), refused(413, "status 413")),
        (
            "stale",
            http(
                409,
                r#"{"error":"policy revision conflict: expected 2, current 3"}"#,
            ),
            Err(TargetError::Conflict),
        ),
        (
            "gone",
            http(404, r#"{"error":"router instance not found"}"#),
            Err(TargetError::Gone),
        ),
        (
            "busy",
            http(503, r#"{"error":"busy"}"#),
            Err(TargetError::transient("busy (status 503)")),
        ),
        (
            "unauthorised",
            http(401, ""),
            Err(TargetError::transient("status 401 (status 401)")),
        ),
    ];
    for (case, answer, expected) in cases {
        let (target, mut requests) =
            serve(BTreeMap::from([("PATCH /router_policy", answer)])).await;
        let outcome = target.apply(id(1), Revision(3), &patch).await;
        assert_eq!(outcome.map(|applied| applied.revision), expected, "{case}");
        let request = requests.recv().await.unwrap();
        let body = request.split("\r\n\r\n").nth(1).unwrap();
        assert_eq!(
            body,
            r#"{"expected_revision":3,"parameters":{"overlap_score_credit":null,"router_temperature":0.5},"router_id":"00000000-0000-0000-0000-000000000001"}"#,
            "{case}"
        );
    }
    for (case, answer) in [
        ("truncated", taken.replace("}}}", "")),
        (
            "no configuration",
            taken.replace(
                r#"{"revision":4,"parameters":{"router_temperature":0.5}}"#,
                "null",
            ),
        ),
        ("another router", taken.replace("000001", "000009")),
    ] {
        let (target, _requests) = serve(BTreeMap::from([(
            "PATCH /router_policy",
            http(200, &answer),
        )]))
        .await;
        let outcome = target.apply(id(1), Revision(3), &patch).await;
        assert!(
            matches!(outcome, Err(TargetError::Transient { .. })),
            "{case}: {outcome:?}"
        );
    }
}

#[test]
fn addresses_that_are_none_are_refused() {
    for bad in ["", "127.0.0.1:8000", "https://127.0.0.1:8000", "ftp://x"] {
        assert!(DynamoHttp::new(bad, Timeouts::default()).is_err(), "{bad}");
    }
    let target = DynamoHttp::new("http://127.0.0.1:8000/", Timeouts::default()).unwrap();
    assert_eq!(target.url(), "http://127.0.0.1:8000");
}
