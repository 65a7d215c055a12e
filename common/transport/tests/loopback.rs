//! Both ends over real QUIC on loopback: who is let in, as whom, and who is not.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use phalanx_common::ids::NodeName;
use phalanx_common::wire::FromAgent;
use phalanx_transport::{
    COORDINATOR_NAME, CertificateAuthority, Identity, PeerError, TrustAnchor, accept_control,
    client_endpoint, open_control, peer_node_name, server_endpoint,
};
use quinn::Endpoint;

fn server(authority: &CertificateAuthority) -> (Endpoint, SocketAddr) {
    let identity = authority.issue_coordinator(&[], &[]).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let (endpoint, buffers) = server_endpoint(address, &identity, &authority.trust_anchor()).unwrap();
    assert!(buffers.receive > 0 && buffers.send > 0, "{buffers:?}");
    let bound = endpoint.local_addr().unwrap();
    (endpoint, bound)
}

/// Accepts one connection and gives the peer's name and first message.
async fn accept_one(endpoint: Endpoint) -> Result<(Result<NodeName, PeerError>, Option<FromAgent>), String> {
    let incoming = endpoint.accept().await.ok_or("closed")?;
    let connection = incoming.await.map_err(|error| error.to_string())?;
    let name = peer_node_name(&connection);
    let (mut reader, _writer) = accept_control(&connection).await.map_err(|error| error.to_string())?;
    let message = reader.next().await.map_err(|error| error.to_string())?;
    Ok((name, message))
}

/// Dials, sends one message, and waits for the end of the connection.
async fn dial(address: SocketAddr, identity: &Identity, anchor: &TrustAnchor) -> Result<String, String> {
    let (endpoint, _) = client_endpoint(identity, anchor).unwrap();
    let connecting = endpoint.connect(address, COORDINATOR_NAME).map_err(|error| error.to_string())?;
    let connection = connecting.await.map_err(|error| error.to_string())?;
    let (_reader, mut writer) = open_control(&connection).await.map_err(|error| error.to_string())?;
    writer.send(&FromAgent::Heartbeat).await.map_err(|error| error.to_string())?;
    writer.finish().await.map_err(|error| error.to_string())?;
    Ok(connection.closed().await.to_string())
}

#[tokio::test]
async fn an_agent_is_known_by_its_certificate() {
    let authority = CertificateAuthority::create().unwrap();
    let (endpoint, address) = server(&authority);
    let accepting = tokio::spawn(accept_one(endpoint));
    let identity = authority.issue_agent(&NodeName::from("node-1")).unwrap();
    dial(address, &identity, &authority.trust_anchor()).await.unwrap();
    let (name, message) = accepting.await.unwrap().unwrap();
    assert_eq!(name, Ok(NodeName::from("node-1")));
    assert_eq!(message, Some(FromAgent::Heartbeat));
}

#[tokio::test]
async fn an_agent_of_another_authority_is_not_let_in() {
    let authority = CertificateAuthority::create().unwrap();
    let (endpoint, address) = server(&authority);
    let accepting = tokio::spawn(accept_one(endpoint));
    let other = CertificateAuthority::create().unwrap();
    let identity = other.issue_agent(&NodeName::from("node-1")).unwrap();
    let end = dial(address, &identity, &authority.trust_anchor()).await;
    let text = end.unwrap_or_else(|error| error);
    assert!(text.contains("certificate") || text.contains("aborted"), "{text}");
    accepting.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn a_coordinator_of_another_authority_is_not_trusted() {
    let authority = CertificateAuthority::create().unwrap();
    let (endpoint, address) = server(&authority);
    let accepting = tokio::spawn(accept_one(endpoint));
    let other = CertificateAuthority::create().unwrap();
    let identity = authority.issue_agent(&NodeName::from("node-1")).unwrap();
    let error = dial(address, &identity, &other.trust_anchor()).await.unwrap_err();
    assert!(error.contains("certificate"), "{error}");
    accepting.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn an_agent_cannot_pose_as_the_coordinator_nor_the_other_way_round() {
    let authority = CertificateAuthority::create().unwrap();
    let anchor = authority.trust_anchor();
    let agent = authority.issue_agent(&NodeName::from("node-1")).unwrap();
    let coordinator = authority.issue_coordinator(&[], &[]).unwrap();

    let (endpoint, _) = server_endpoint("127.0.0.1:0".parse().unwrap(), &agent, &anchor).unwrap();
    let address = endpoint.local_addr().unwrap();
    let accepting = tokio::spawn(accept_one(endpoint));
    let error = dial(address, &agent, &anchor).await.unwrap_err();
    assert!(error.contains("certificate"), "{error}");
    accepting.await.unwrap().unwrap_err();

    let (endpoint, address) = server(&authority);
    let accepting = tokio::spawn(accept_one(endpoint));
    let _ = dial(address, &coordinator, &anchor).await;
    accepting.await.unwrap().unwrap_err();
}
