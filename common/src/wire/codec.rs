//! Bytes of the messages: `u32` length, `u16` version (both little-endian), then bincode. The only
//! place that knows bincode.
//!
//! A length over the limit is refused before a byte of the body is read, counts are checked before
//! memory is taken, and a body must be used up to its last byte.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{FromAgent, OLDEST_VERSION, ToAgent, VERSION};

/// Largest frame, header included. The largest honest message is a Hello of a node with 64 GPUs, 256
/// NICs and a few hundred leases: about 200 KiB.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// Bytes of the header in front of a body.
pub const HEADER_BYTES: usize = 6;

const VERSION_BYTES: usize = 2;

type Settings = Configuration<LittleEndian, Varint, Limit<MAX_FRAME_BYTES>>;

const SETTINGS: Settings = bincode::config::standard().with_limit::<MAX_FRAME_BYTES>();

/// Why bytes are not a message.
#[derive(Debug, Error)]
pub enum CodecError {
    /// The length field is over the limit, or too short to hold a version.
    #[error("frame of {0} bytes: 2 to {MAX_FRAME_BYTES} are allowed")]
    FrameSize(usize),
    /// The peer wrote a version this build does not serve.
    #[error("message version {0}: this build serves {OLDEST_VERSION} to {VERSION}")]
    Version(u16),
    /// The body does not decode.
    #[error("message body does not decode: {0}")]
    Body(#[from] bincode::error::DecodeError),
    /// The body is longer than its message.
    #[error("{0} bytes are left over behind the message")]
    Trailing(usize),
    /// The message is newer than the version that was agreed on.
    #[error("message came with version {since}, the peer speaks {agreed}")]
    TooNew {
        /// Version that brought the message.
        since: u16,
        /// Version agreed on.
        agreed: u16,
    },
    /// The message is too large to send.
    #[error("message does not encode: {0}")]
    Encode(#[from] bincode::error::EncodeError),
}

/// A message that has a version.
pub trait Message: Serialize + DeserializeOwned {
    /// Version that brought this message.
    fn since(&self) -> u16;
}

impl Message for ToAgent {
    fn since(&self) -> u16 {
        Self::since(self)
    }
}

impl Message for FromAgent {
    fn since(&self) -> u16 {
        Self::since(self)
    }
}

/// Encodes a message as one frame of the agreed version.
///
/// # Errors
/// The peer is too old for the message, or it is larger than a frame may be.
pub fn encode<M: Message>(message: &M, agreed: u16) -> Result<Vec<u8>, CodecError> {
    if message.since() > agreed {
        return Err(CodecError::TooNew { since: message.since(), agreed });
    }
    let mut frame = vec![0; HEADER_BYTES];
    bincode::serde::encode_into_std_write(message, &mut frame, SETTINGS)?;
    if frame.len() > MAX_FRAME_BYTES {
        return Err(CodecError::FrameSize(frame.len()));
    }
    let length = u32::try_from(frame.len() - 4).map_err(|_| CodecError::FrameSize(frame.len()))?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame[4..HEADER_BYTES].copy_from_slice(&agreed.to_le_bytes());
    Ok(frame)
}

/// Reads the length field: how many bytes follow it. To be checked before a buffer is made.
///
/// # Errors
/// The length is outside what is allowed.
pub fn body_bytes(length: [u8; 4]) -> Result<usize, CodecError> {
    let length = u32::from_le_bytes(length) as usize;
    if (VERSION_BYTES..=MAX_FRAME_BYTES - 4).contains(&length) {
        Ok(length)
    } else {
        Err(CodecError::FrameSize(length))
    }
}

/// Decodes what follows the length field.
///
/// # Errors
/// Another version, or bytes that are not exactly one message.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, CodecError> {
    let (version, body) =
        bytes.split_first_chunk::<VERSION_BYTES>().ok_or(CodecError::FrameSize(bytes.len()))?;
    let version = u16::from_le_bytes(*version);
    if !(OLDEST_VERSION..=VERSION).contains(&version) {
        return Err(CodecError::Version(version));
    }
    let (message, used): (M, usize) = bincode::serde::decode_from_slice(body, SETTINGS)?;
    if used != body.len() {
        return Err(CodecError::Trailing(body.len() - used));
    }
    if message.since() > version {
        return Err(CodecError::TooNew { since: message.since(), agreed: version });
    }
    Ok(message)
}

/// The version two peers use: the newest both speak.
#[must_use]
pub fn agree(oldest: u16, newest: u16) -> Option<u16> {
    let version = newest.min(VERSION);
    (version >= oldest.max(OLDEST_VERSION)).then_some(version)
}
