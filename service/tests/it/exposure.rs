//! What is reachable, and what is not.

use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Fixture, PATIENCE, config, memory_log};

/// Sends bytes as they are; gives back the status line.
async fn raw(fixture: &Fixture, request: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(fixture.running().address())
        .await
        .unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .unwrap()
        .unwrap();
    String::from_utf8_lossy(&answer)
        .lines()
        .next()
        .unwrap_or("")
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_match_exactly() {
    let fixture = Fixture::new().await;
    for (target, status) in [
        ("/router_policy", "200"),
        ("//router_policy", "404"),
        ("/router_policy/", "404"),
        ("/./router_policy", "404"),
        ("/ROUTER_POLICY", "404"),
        ("/%2frouter_policy", "404"),
        ("/v1/../router_policy", "404"),
        ("/router%5fpolicy", "404"),
        ("/router_policy/x", "404"),
        ("/v1/policies/", "404"),
        ("/v1", "404"),
    ] {
        let request = format!(
            "GET {target} HTTP/1.1\r\nhost: x\r\nx-original-url: /router_policy\r\nconnection: close\r\n\r\n"
        );
        let line = raw(&fixture, &request).await;
        assert!(line.contains(status), "{target}: {line}");
    }
    let absolute = "GET http://elsewhere/nope HTTP/1.1\r\nhost: x\r\nx-original-url: /router_policy\r\nconnection: close\r\n\r\n";
    assert!(raw(&fixture, absolute).await.contains("404"));
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_that_a_route_lacks_are_405_and_the_others_are_named() {
    let fixture = Fixture::new().await;
    // (path, allowed, refused)
    for (path, allowed, refused) in [
        (
            "/router_policy",
            "GET,HEAD,PATCH",
            ["POST", "PUT", "DELETE", "OPTIONS"],
        ),
        (
            "/busy_threshold",
            "GET,HEAD,POST",
            ["PATCH", "PUT", "DELETE", "OPTIONS"],
        ),
        ("/v1/changes", "POST", ["GET", "PUT", "DELETE", "PATCH"]),
    ] {
        for method in refused {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let response = fixture.request(method.clone(), path).send().await.unwrap();
            assert_eq!(response.status(), 405, "{method} {path}");
            assert_eq!(response.headers()["allow"], allowed, "{method} {path}");
        }
    }
    let response = fixture
        .request(Method::HEAD, "/router_policy")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_addresses_than_loopback_need_to_be_said_out_loud() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.listen = "0.0.0.0:0".parse().unwrap();
    let fixture = Fixture::stopped(memory_log(1), config);
    let wiring = event_log::Wiring {
        log: fixture.log.clone(),
        board: fixture.board.clone(),
    };
    let refused = service::start(fixture.config.clone(), wiring)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("--insecure"), "{refused}");
    let mut insecure = fixture;
    insecure.config.insecure = true;
    insecure.start().await;
    insecure.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_finishes_its_request_is_let_go() {
    let fixture = Fixture::with(|config| {
        config.header_read_timeout = std::time::Duration::from_millis(100);
    })
    .await;
    let line = raw(&fixture, "GET /livez HTTP/1.1\r\nhost: x\r\n").await;
    assert!(line.is_empty() || line.contains("408"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_finishes_its_body_is_told_and_let_go() {
    let fixture = Fixture::with(|config| {
        config.body_read_timeout = std::time::Duration::from_millis(100);
    })
    .await;
    let head = "POST /v1/changes HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    for body in [
        "content-length: 1000\r\n\r\n{\"changes\": ",
        "transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    ] {
        let answer = raw(&fixture, &format!("{head}{body}")).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_metrics_and_the_page_answer() {
    let fixture = Fixture::new().await;
    let (status, health) = fixture.get("/livez").await;
    assert_eq!((status.as_u16(), &health["ready"]), (200, &json!(true)));
    let (status, page) = fixture.get("/").await;
    assert_eq!(status, 200);
    assert!(page.as_str().unwrap().contains("/openapi.json"));
    fixture.set("m", 1.0).await;
    let (_, metrics) = fixture.get("/metrics").await;
    for wanted in [
        "router_policy_writes_total{outcome=\"accepted\"} 1",
        "router_policy_records_total{verdict=\"accepted\"} 1",
        "router_policy_projection_position 1",
        "router_policy_log_condition{condition=\"following\"} 1",
        "router_policy_http_requests_total{route=\"/v1/changes\",method=\"POST\",status=\"200\"} 1",
    ] {
        assert!(
            metrics.as_str().unwrap().contains(wanted),
            "{wanted}\n{metrics}"
        );
    }
}
