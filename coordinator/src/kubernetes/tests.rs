//! The start: who the cluster is, and what keeps it from being known.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use kube::client::Body;

use super::*;

/// A server that gives these answers to questions for the cluster's identity, and the last one for ever.
fn server(answers: Vec<(u16, &'static str)>) -> Client {
    let asked = AtomicUsize::new(0);
    let service = tower::service_fn(move |request: Request<Body>| {
        assert_eq!(request.uri().path(), "/api/v1/namespaces/kube-system");
        let at = asked.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
        let (code, text) = answers[at];
        let answer = Response::builder().status(code).body(Full::new(Bytes::from(text))).unwrap();
        async move { Ok::<_, Infallible>(answer) }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn the_identity_is_asked_for_until_it_is_told() {
    let known = r#"{"metadata":{"name":"kube-system","uid":"u-1"}}"#;
    let client = server(vec![(503, "starting"), (200, known)]);
    assert_eq!(read_cluster_id(&client, SOME_SERVER).await.unwrap().as_str(), "u-1");
}

/// Where there is no API server at all it is not said each second.
#[test]
fn an_identity_that_is_not_told_is_asked_for_ever_more_seldom() {
    assert_eq!(
        [1, 2, 3, 4, 5, 6, 1000].map(|attempt| start_pause(attempt).as_secs()),
        [1, 2, 4, 8, 15, 15, 15]
    );
}

#[tokio::test]
async fn a_refusal_says_at_once_what_is_missing() {
    let refusal = r#"{"kind":"Status","status":"Failure","message":"namespaces is forbidden","code":403}"#;
    let client = server(vec![(403, refusal)]);
    let text = read_cluster_id(&client, "the API server https://a:1").await.unwrap_err().to_string();
    assert!(text.contains("the API server https://a:1 refuses"), "{text}");
    assert!(text.contains("namespaces is forbidden") && text.contains("deploy/ (RBAC)"), "{text}");
}
