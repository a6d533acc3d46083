//! The audit: pages that never shift, filters that combine, exports that are safe to open.

use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Fixture, change, name};

fn positions(page: &Value) -> Vec<u64> {
    let entries = page["entries"].as_array().unwrap();
    entries
        .iter()
        .map(|entry| entry["position"].as_u64().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_neither_repeat_nor_miss_while_50_writers_write() {
    let fixture = Fixture::new().await;
    for n in 0..30 {
        fixture.set(&format!("m{}", n % 3), 1.0).await;
    }
    let done = AtomicBool::new(false);
    let writers = futures::future::join_all((0..50).map(|writer| {
        let (fixture, done) = (&fixture, &done);
        async move {
            while !done.load(Ordering::Relaxed) {
                fixture.set(&format!("w{writer}"), 1.0).await;
            }
        }
    }));
    let readers = async {
        for (order, filter) in [
            ("oldest", ""),
            ("newest", ""),
            ("oldest", "&model=m1"),
            ("newest", "&model=m1&actor=local"),
        ] {
            let mut seen: Vec<u64> = Vec::new();
            let mut cursor = String::new();
            for _ in 0..12 {
                let path = format!("/v1/audit?order={order}&limit=5{filter}{cursor}");
                let (status, page) = fixture.get(&path).await;
                assert_eq!(status, 200, "{page}");
                seen.extend(positions(&page));
                match page["next_cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            let rising = seen.windows(2).all(|pair| pair[0] < pair[1]);
            let falling = seen.windows(2).all(|pair| pair[0] > pair[1]);
            assert!(
                if order == "oldest" { rising } else { falling },
                "{order} {filter}: {seen:?}"
            );
            if filter.is_empty() {
                let dense = seen.windows(2).all(|pair| pair[0].abs_diff(pair[1]) == 1);
                assert!(dense && seen.len() >= 30, "{seen:?}");
            } else {
                assert_eq!(seen.len(), 10, "{filter}: {seen:?}");
            }
        }
        done.store(true, Ordering::Relaxed);
    };
    tokio::join!(writers, readers);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_combine_and_cursors_belong_to_theirs() {
    let fixture = Fixture::new().await;
    let send = |body: Value| {
        let fixture = &fixture;
        async move {
            let (status, answer) = fixture.send(Method::POST, "/v1/changes", &body).await;
            assert_eq!(status, 200, "{answer}");
            answer
        }
    };
    send(json!({"changes": [change("a", 1.0)], "reason": "one"})).await; // 1
    send(
        json!({"changes": [{"kind": "worker_selection", "scope": {"model": "a"}, "reset": true}]}),
    )
    .await; // 2
    let both = send(json!({"changes": [change("a", 2.0), change("b", 2.0)]})).await; // 3
    send(json!({"changes": [{"kind": "busy_threshold", "scope": {"model": "b", "group": "g"}, "parameters": {"active_decode_blocks_threshold": 0.5}}]})).await; // 4
    let schema = json!({"schema": {"type": "integer"}});
    let (status, _) = fixture
        .send(Method::PUT, "/v1/parameters/blocks", &schema)
        .await; // 5
    assert_eq!(status, 200);
    let a = both["policies"][0]["id"].as_str().unwrap();
    let command = both["command_id"].as_str().unwrap();
    let cases = [
        (String::new(), vec![5, 4, 3, 2, 1]),
        ("order=oldest".into(), vec![1, 2, 3, 4, 5]),
        ("model=a".into(), vec![3, 2, 1]),
        ("model=b".into(), vec![4, 3]),
        ("model=b&kind=worker_selection".into(), vec![3]),
        ("model=a&action=reset".into(), vec![2]),
        ("action=registered".into(), vec![5]),
        ("action=patched".into(), vec![4, 3, 1]),
        ("group=g".into(), vec![4]),
        (format!("policy={a}"), vec![3, 2, 1]),
        (format!("policy={a}&after=1&before=3"), vec![2]),
        (format!("command_id={command}"), vec![3]),
        (format!("command_id={command}&model=c"), vec![]),
        ("actor=local&verdict=accepted".into(), vec![5, 4, 3, 2, 1]),
        ("actor=eve".into(), vec![]),
        ("verdict=void".into(), vec![]),
        ("until=1999-01-01T00:00:00Z".into(), vec![]),
        (
            "since=1999-01-01T00:00:00Z&limit=1000&after=4".into(),
            vec![5],
        ),
    ];
    for (query, wanted) in cases {
        let (status, page) = fixture.get(&format!("/v1/audit?{query}")).await;
        assert_eq!(status, 200, "{query}: {page}");
        assert_eq!(positions(&page), wanted, "{query}");
        assert!(page.get("next_cursor").is_none(), "{query}");
    }
    let (_, page) = fixture.get("/v1/audit?limit=2").await;
    let cursor = page["next_cursor"].as_str().unwrap();
    for (query, status) in [
        (format!("limit=1&cursor={cursor}"), 200),
        (format!("order=oldest&cursor={cursor}"), 400),
        (format!("model=a&cursor={cursor}"), 400),
        ("cursor=x".into(), 400),
        ("limit=0".into(), 400),
        ("limit=1001".into(), 400),
        ("since=yesterday".into(), 400),
        // Answered with nothing before, as if nothing had been done.
        ("action=registred".into(), 400),
        ("nope=1".into(), 400),
    ] {
        let (got, answer) = fixture.get(&format!("/v1/audit?{query}")).await;
        assert_eq!(got.as_u16(), status, "{query}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exports_are_whole_and_hold_no_formulas() {
    let fixture = Fixture::new().await;
    let evil = "=HYPERLINK(\"http://x\",\"y\")";
    let body = json!({"changes": [change(evil, 1.0), change("b", 1.0)], "reason": "+1,\n\"ok\""});
    assert_eq!(
        fixture.send(Method::POST, "/v1/changes", &body).await.0,
        200
    );
    for n in 0..300 {
        fixture.set("m", f64::from(n)).await;
    }
    let (_, text) = fixture.get("/v1/audit?format=csv&order=oldest").await;
    let text = text.as_str().unwrap();
    assert!(text.starts_with("position,at,actor,"));
    assert!(
        text.contains("\"'=HYPERLINK(\"\"http://x\"\",\"\"y\"\")\""),
        "{}",
        &text[..400]
    );
    assert!(text.contains("\"'+1,\n\"\"ok\"\"\""));
    assert_eq!(text.matches("\r\n").count(), 1 + 2 + 300);
    for order in ["oldest", "newest"] {
        let (_, text) = fixture
            .get(&format!("/v1/audit?format=ndjson&order={order}"))
            .await;
        let mut seen: Vec<u64> = text
            .as_str()
            .unwrap()
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).unwrap()["position"]
                    .as_u64()
                    .unwrap()
            })
            .collect();
        if order == "newest" {
            seen.reverse();
        }
        assert_eq!(seen, (1..=301).collect::<Vec<u64>>());
    }
    let request = fixture
        .request(Method::GET, "/v1/audit?limit=1")
        .header("accept", "text/csv");
    let response = request.send().await.unwrap();
    assert_eq!(
        response.headers()["content-type"],
        "text/csv; charset=utf-8"
    );
    assert_eq!(name(evil).as_str(), evil);
}
