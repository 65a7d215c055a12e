//! What the admin interface does with requests that are no requests: a clear answer, an end, and nobody else waits.

use crate::support::{apply, ask, get, start, stop};
use phalanx_coordinator::coordinator::Coordinator;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends bytes as they are and reads until the end.
async fn send(coordinator: &Coordinator, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(coordinator.admin).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // A connection that is cut off may end with an error; what came before counts.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wrong_request_gets_a_json_error_that_says_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let long_name = format!("/v1/apply?file={}", "a".repeat(5000));
    for (method, path, status, text) in [
        ("POST", "/v1/apply?file=a&file=b", 400, "duplicate field `file`"),
        ("POST", long_name.as_str(), 400, "file: must have at most 4096 characters, found 5000"),
        ("POST", "/v1/delete?part=some", 400, "unknown variant `some`"),
        ("GET", "/v1/apply", 405, "\"/v1/apply\" does not answer GET"),
        ("PUT", "/v1/objects/queue/-/a", 405, "does not answer PUT"),
        ("GET", "/v1/objects/%ff", 400, "invalid UTF-8"),
        ("GET", "/v1/objects/pod/%ff/a", 400, "invalid UTF-8"),
        ("DELETE", "/v1/objects/pod/%ff/a", 400, "invalid UTF-8"),
        ("GET", "/v1/explain/%ff/a", 400, "invalid UTF-8"),
        ("GET", "/v1/events?after=-1", 400, "invalid digit"),
    ] {
        let body = (method == "POST").then(String::new);
        let answer = ask(&coordinator, method, path, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text);
        let told = answer.error().to_lowercase();
        assert!(told.contains(&text.to_lowercase()), "{method} {path}: {told}");
    }
    let answer = apply(&coordinator, "{\"kind\": \"Queue\"").await;
    assert_eq!((&answer["ok"], answer["diagnostics"].as_array().unwrap().len()), (&false.into(), 1));
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_http_are_answered_and_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let head = format!("POST /v1/apply HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", coordinator.admin);
    let long = format!("{head}X: {}\r\n\r\n", "x".repeat(1 << 20));
    let not_text = [head.as_bytes(), b"Content-Length: 2\r\n\r\n\xff\xfe"].concat();
    for (bytes, status) in [
        (&b"GARBAGE\r\n\r\n"[..], "400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
        (b"GET / HTTP/9.9\r\n\r\n", "400"),
        (long.as_bytes(), "431"),
        (&not_text, "400"),
        (format!("{head}Content-Length: -1\r\n\r\n").as_bytes(), "400"),
        (format!("{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n").as_bytes(), "400"),
    ] {
        let answer = send(&coordinator, bytes).await;
        let line = answer.lines().next().unwrap_or_default();
        assert!(
            line.contains(status),
            "{status}: {answer:?} to {:?}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(80)])
        );
    }
    assert_eq!(get(&coordinator, "/healthz").await.text, "ok\n");
    stop(coordinator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_keep_neither_others_nor_the_process_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let coordinator = start(directory.path()).await;
    let slow =
        format!("POST /v1/apply HTTP/1.1\r\nHost: {}\r\nContent-Length: 5\r\n\r\nab", coordinator.admin);
    let mut silent = Vec::new();
    // More than there are places, for connections (256) and for texts (64).
    for number in 0..400 {
        let mut stream = TcpStream::connect(coordinator.admin).await.unwrap();
        // Nothing at all, half a header, half a body.
        let said: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET /healthz HTTP/1.1\r\nHost: local",
            _ => slow.as_bytes(),
        };
        stream.write_all(said).await.unwrap();
        silent.push(stream);
    }
    for _ in 0..3 {
        assert_eq!(get(&coordinator, "/healthz").await.text, "ok\n");
        assert_eq!(apply(&coordinator, "").await["objects"], 0);
    }
    stop(coordinator).await;
    drop(silent);
}
