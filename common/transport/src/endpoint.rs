//! QUIC endpoints over sockets of our own, with the settings both sides share.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use phalanx_common::wire::ALPN;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Endpoint, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use rustls::RootCertStore;
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::{CryptoProvider, ring as ring_provider};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use crate::pki::{Identity, PkiError, TrustAnchor};

/// Socket buffer asked for, in bytes: thousands of agents that reconnect at once overrun the usual 208 KiB.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// A connection without a sign of life ends after this time; the smaller value of the two sides counts.
const IDLE_TIMEOUT_MS: u32 = 15_000;
/// The agent keeps the connection alive; the coordinator need not, and so has no timer per agent.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// The usual 333 ms would let the first retransmission wait a second.
const INITIAL_RTT: Duration = Duration::from_millis(30);
/// One control stream, and room for one that a later version may open.
const STREAMS: u32 = 2;
/// What a peer may send before it is read: the bound of what a connection that floods can lay up here.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 512 << 10;
/// What is kept for a peer that does not take it; more than that the writer has to hold back.
const SEND_WINDOW_BYTES: u64 = 256 << 10;
/// Connections that nobody has accepted or turned away yet. The accept loop takes them off at once; beyond this
/// first packets are dropped unseen, which agents take for loss.
const UNSEEN_CONNECTIONS: usize = 4096;
/// Packets kept for one of them, and for all.
const UNSEEN_BYTES: u64 = 16 << 10;
const UNSEEN_BYTES_IN_ALL: u64 = 8 << 20;

/// Why an endpoint could not be made.
#[derive(Debug, Error)]
pub enum EndpointError {
    /// The socket could not be made or bound.
    #[error("UDP socket on {address}: {source}")]
    Socket {
        /// Address asked for.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// Certificate, key or authority cannot be used.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The TLS library refuses certificate, key or authority.
    #[error("TLS settings: {0}")]
    Tls(String),
}

/// Buffers of a UDP socket in bytes, as asked for and as the system granted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketBuffers {
    /// Bytes asked for, in each direction.
    pub asked: usize,
    /// Bytes granted for receiving.
    pub receive: usize,
    /// Bytes granted for sending.
    pub send: usize,
}

impl SocketBuffers {
    /// True where the system granted less than was asked for (`net.core.rmem_max`, `net.core.wmem_max`).
    #[must_use]
    pub const fn clamped(&self) -> bool {
        self.receive < self.asked || self.send < self.asked
    }
}

/// Whether agents must have certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerCertificate {
    /// Each shows one of the authority.
    Required,
    /// Who shows none has to say otherwise who it is; one that is shown must be of the authority.
    Optional,
}

/// An endpoint that agents dial. Every peer must show a certificate of the authority.
///
/// A coordinator that crashed and came back at its old address does not know the connections its
/// predecessor had. It answers their packets with a stateless reset (RFC 9000, 10.3), so that agents
/// dial again at once instead of after the idle time; for that both must have the same secret, which an
/// identity made by `issue_coordinator` carries.
///
/// # Errors
/// The address cannot be bound, or the certificates cannot be used.
pub fn server_endpoint(
    address: SocketAddr,
    identity: &Identity,
    authority: &TrustAnchor,
) -> Result<(Endpoint, SocketBuffers), EndpointError> {
    server_endpoint_for(address, identity, authority, PeerCertificate::Required)
}

/// As `server_endpoint`, and says whether agents must have certificates.
///
/// # Errors
/// As `server_endpoint`.
pub fn server_endpoint_for(
    address: SocketAddr,
    identity: &Identity,
    authority: &TrustAnchor,
    peers: PeerCertificate,
) -> Result<(Endpoint, SocketBuffers), EndpointError> {
    let config = server_config(identity, authority, peers)?;
    let (socket, buffers) = socket(address)?;
    let settings = identity.reset_secret().map_or_else(EndpointConfig::default, resettable);
    Ok((endpoint(address, socket, settings, Some(config))?, buffers))
}

/// Settings under which a successor can end the connections of this endpoint: reset tokens, and
/// connection ids that it takes for its own, are made from the secret.
fn resettable(secret: &[u8]) -> EndpointConfig {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let ids = hmac::sign(&key, b"connection ids");
    let ids = ids.as_ref().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let mut config = EndpointConfig::new(Arc::new(key));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    config
}

/// An endpoint that dials with this identity.
///
/// # Errors
/// No UDP socket can be made, or the certificates cannot be used.
pub fn client_endpoint(
    identity: &Identity,
    authority: &TrustAnchor,
) -> Result<(Endpoint, SocketBuffers), EndpointError> {
    let config = client_config(identity, authority)?;
    let (mut endpoint, buffers) = bare_client_endpoint()?;
    endpoint.set_default_client_config(config);
    Ok((endpoint, buffers))
}

/// An endpoint for many agents of one process: each dials with its own `client_config`.
///
/// # Errors
/// No UDP socket can be made.
pub fn bare_client_endpoint() -> Result<(Endpoint, SocketBuffers), EndpointError> {
    // One socket for both families; where the system has no IPv6, one for IPv4.
    let dual = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let (address, (socket, buffers)) = match socket(dual) {
        Ok(made) => (dual, made),
        Err(_) => {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            (address, socket(address)?)
        }
    };
    Ok((endpoint(address, socket, EndpointConfig::default(), None)?, buffers))
}

/// Settings of an agent's connection.
///
/// # Errors
/// The certificates cannot be used.
pub fn client_config(identity: &Identity, authority: &TrustAnchor) -> Result<ClientConfig, EndpointError> {
    let tls = client_tls(authority)?
        .with_client_auth_cert(identity.chain()?, identity.key()?)
        .map_err(tls_error)?;
    client_config_of(tls)
}

/// Settings of a connection of an agent that has no certificate, and says by a token who it is.
///
/// # Errors
/// The authority cannot be used.
pub fn token_client_config(authority: &TrustAnchor) -> Result<ClientConfig, EndpointError> {
    client_config_of(client_tls(authority)?.with_no_client_auth())
}

fn client_tls(
    authority: &TrustAnchor,
) -> Result<rustls::ConfigBuilder<rustls::ClientConfig, WantsClientCert>, EndpointError> {
    Ok(rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(tls_error)?
        .with_root_certificates(roots(authority)?))
}

fn client_config_of(mut tls: rustls::ClientConfig) -> Result<ClientConfig, EndpointError> {
    tls.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session shows the old certificate without checking it again.
    tls.resumption = Resumption::disabled();
    let crypto = QuicClientConfig::try_from(tls).map_err(tls_error)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    let mut transport = transport_config();
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Settings of an endpoint that agents dial: for one that stands already, whose certificate is renewed. Connections
/// that stand are left alone.
///
/// # Errors
/// The certificates cannot be used.
pub fn server_config(
    identity: &Identity,
    authority: &TrustAnchor,
    peers: PeerCertificate,
) -> Result<ServerConfig, EndpointError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(authority)?), provider());
    let verifier = match peers {
        PeerCertificate::Required => verifier,
        PeerCertificate::Optional => verifier.allow_unauthenticated(),
    };
    let verifier = verifier.build().map_err(tls_error)?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(tls_error)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain()?, identity.key()?)
        .map_err(tls_error)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    let crypto = QuicServerConfig::try_from(tls).map_err(tls_error)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config
        .transport_config(Arc::new(transport_config()))
        .max_incoming(UNSEEN_CONNECTIONS)
        .incoming_buffer_size(UNSEEN_BYTES)
        .incoming_buffer_size_total(UNSEEN_BYTES_IN_ALL);
    Ok(config)
}

fn transport_config() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MS))))
        .initial_rtt(INITIAL_RTT)
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        // No datagrams in either direction.
        .datagram_receive_buffer_size(None)
        .datagram_send_buffer_size(0);
    transport
}

/// Always named: with two providers in a program, or none, the TLS library would panic on a default.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring_provider::default_provider())
}

fn roots(authority: &TrustAnchor) -> Result<RootCertStore, EndpointError> {
    let mut roots = RootCertStore::empty();
    for certificate in authority.certificates()? {
        roots.add(certificate).map_err(tls_error)?;
    }
    Ok(roots)
}

fn tls_error(error: impl std::fmt::Display) -> EndpointError {
    EndpointError::Tls(error.to_string())
}

fn socket(address: SocketAddr) -> Result<(Socket, SocketBuffers), EndpointError> {
    let failed = |source| EndpointError::Socket { address, source };
    let socket =
        Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP)).map_err(failed)?;
    if address.is_ipv6() {
        socket.set_only_v6(false).map_err(failed)?;
    }
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES).map_err(failed)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES).map_err(failed)?;
    socket.bind(&address.into()).map_err(failed)?;
    // Linux doubles what it grants, for its own bookkeeping, and says the double.
    let overhead = if cfg!(target_os = "linux") { 2 } else { 1 };
    let buffers = SocketBuffers {
        asked: SOCKET_BUFFER_BYTES,
        receive: socket.recv_buffer_size().map_err(failed)? / overhead,
        send: socket.send_buffer_size().map_err(failed)? / overhead,
    };
    if buffers.clamped() {
        tracing::warn!(
            asked_bytes = buffers.asked,
            receive_bytes = buffers.receive,
            send_bytes = buffers.send,
            "the system clamps the UDP buffers: raise net.core.rmem_max and net.core.wmem_max"
        );
    }
    Ok((socket, buffers))
}

fn endpoint(
    address: SocketAddr,
    socket: Socket,
    config: EndpointConfig,
    server: Option<ServerConfig>,
) -> Result<Endpoint, EndpointError> {
    Endpoint::new(config, server, socket.into(), Arc::new(quinn::TokioRuntime))
        .map_err(|source| EndpointError::Socket { address, source })
}
