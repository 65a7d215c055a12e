//! Messages on a byte stream. The length is checked before a buffer is made for it.

use std::io;

use phalanx_common::wire::OLDEST_VERSION;
use phalanx_common::wire::codec::{self, CodecError, Message};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const LENGTH_BYTES: usize = 4;
/// Read at once where no frame is begun; most messages are smaller. Ten thousand idle connections keep as much each.
const READ_BYTES: usize = 1024;

/// The agent's messages arrive here, or the coordinator's at the agent.
pub type ControlReader = FrameReader<quinn::RecvStream>;
/// Messages leave here.
pub type ControlWriter = FrameWriter<quinn::SendStream>;

/// Why a message could not be read or written. The stream cannot be used any more.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The stream broke.
    #[error("stream: {0}")]
    Stream(#[from] io::Error),
    /// The bytes are no message, or the message cannot be sent to this peer.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The stream ended inside a frame.
    #[error("the stream ended after {got} bytes of a frame")]
    Truncated {
        /// Bytes of the frame that came.
        got: usize,
    },
}

/// Reads messages.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads messages from this stream.
    #[must_use]
    pub const fn new(stream: R) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// The next message; `None` where the peer has ended the stream. A call that is dropped loses nothing, so
    /// it may stand in a `select!`.
    ///
    /// # Errors
    /// The stream broke or ended inside a frame, or the bytes are no message of this kind.
    pub async fn next<M: Message>(&mut self) -> Result<Option<M>, FrameError> {
        loop {
            let wanted = match self.buffer.first_chunk::<LENGTH_BYTES>() {
                None => READ_BYTES,
                Some(length) => {
                    let frame_end = LENGTH_BYTES + codec::body_bytes(*length)?;
                    if self.buffer.len() >= frame_end {
                        return self.take(frame_end).map(Some);
                    }
                    frame_end - self.buffer.len()
                }
            };
            self.buffer.reserve(wanted);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                let got = self.buffer.len();
                return if got == 0 { Ok(None) } else { Err(FrameError::Truncated { got }) };
            }
        }
    }

    fn take<M: Message>(&mut self, frame_end: usize) -> Result<M, FrameError> {
        let message = codec::decode(&self.buffer[LENGTH_BYTES..frame_end])?;
        self.buffer.drain(..frame_end);
        if self.buffer.is_empty() && self.buffer.capacity() > READ_BYTES {
            self.buffer = Vec::new();
        }
        Ok(message)
    }
}

/// Writes messages in the version that was agreed on; in the oldest one before that.
#[derive(Debug)]
pub struct FrameWriter<W> {
    stream: W,
    version: u16,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Writes messages to this stream.
    #[must_use]
    pub const fn new(stream: W) -> Self {
        Self { stream, version: OLDEST_VERSION }
    }

    /// Sets the version of all further messages.
    pub const fn set_version(&mut self, version: u16) {
        self.version = version;
    }

    /// Version in which messages are written.
    #[must_use]
    pub const fn version(&self) -> u16 {
        self.version
    }

    /// Writes one message. A call that is dropped may leave half a frame: let it end.
    ///
    /// # Errors
    /// The stream broke, or the message is too new for the peer or too large.
    pub async fn send<M: Message>(&mut self, message: &M) -> Result<(), FrameError> {
        let frame = codec::encode(message, self.version)?;
        self.stream.write_all(&frame).await?;
        self.stream.flush().await?;
        Ok(())
    }

    /// Ends the stream behind the last message.
    ///
    /// # Errors
    /// The stream broke before.
    pub async fn finish(&mut self) -> Result<(), FrameError> {
        Ok(self.stream.shutdown().await?)
    }
}

/// Opens the control stream: the agent's side. The coordinator sees it with its first message.
///
/// # Errors
/// The connection is gone.
pub async fn open_control(
    connection: &quinn::Connection,
) -> Result<(ControlReader, ControlWriter), quinn::ConnectionError> {
    let (send, receive) = connection.open_bi().await?;
    Ok((FrameReader::new(receive), FrameWriter::new(send)))
}

/// Waits for the control stream: the coordinator's side.
///
/// # Errors
/// The connection is gone.
pub async fn accept_control(
    connection: &quinn::Connection,
) -> Result<(ControlReader, ControlWriter), quinn::ConnectionError> {
    let (send, receive) = connection.accept_bi().await?;
    Ok((FrameReader::new(receive), FrameWriter::new(send)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_common::ids::{LeaseId, Term};
    use phalanx_common::wire::{FromAgent, LeaseState, ToAgent};

    fn message(serial: u64) -> FromAgent {
        let lease = LeaseId { term: 1, serial };
        FromAgent::LeaseIs { term: Term::default(), lease, state: LeaseState::Armed }
    }

    #[tokio::test]
    async fn messages_come_in_order_however_they_are_cut() {
        let mut bytes = Vec::new();
        for serial in 0..40 {
            bytes.extend(codec::encode(&message(serial), 1).unwrap());
        }
        for piece in [1, 3, 7, 4096] {
            let (mut near, far) = tokio::io::duplex(piece);
            let sent = bytes.clone();
            let writing = tokio::spawn(async move {
                near.write_all(&sent).await.unwrap();
            });
            let mut reader = FrameReader::new(far);
            for serial in 0..40 {
                assert_eq!(reader.next().await.unwrap(), Some(message(serial)));
            }
            assert_eq!(reader.next::<FromAgent>().await.unwrap(), None);
            writing.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_dropped_read_loses_nothing() {
        let frame = codec::encode(&message(7), 1).unwrap();
        let (mut near, far) = tokio::io::duplex(64);
        let mut reader = FrameReader::new(far);
        for byte in frame {
            tokio::select! {
                biased;
                early = reader.next::<FromAgent>() => assert_eq!(early.unwrap(), None, "complete too early"),
                () = std::future::ready(()) => {}
            }
            near.write_all(&[byte]).await.unwrap();
        }
        assert_eq!(reader.next().await.unwrap(), Some(message(7)));
    }

    #[tokio::test]
    async fn wrong_lengths_and_half_frames_are_errors() {
        let huge: &[u8] = &[255, 255, 255, 255, 0, 0];
        let error = FrameReader::new(huge).next::<FromAgent>().await.unwrap_err();
        assert!(matches!(error, FrameError::Codec(CodecError::FrameSize(_))), "{error}");
        let frame = codec::encode(&message(7), 1).unwrap();
        let error = FrameReader::new(&frame[..frame.len() - 1]).next::<FromAgent>().await.unwrap_err();
        assert!(matches!(error, FrameError::Truncated { .. }), "{error}");
        let error = FrameReader::new(&frame[..]).next::<ToAgent>().await;
        assert!(error.is_err(), "an agent's message is no coordinator's");
    }

    #[tokio::test]
    async fn a_message_newer_than_agreed_is_not_written() {
        let mut writer = FrameWriter::new(Vec::new());
        let newer = FromAgent::HealthChanged { gpus: Vec::new() };
        let error = writer.send(&newer).await.unwrap_err();
        assert!(matches!(error, FrameError::Codec(CodecError::TooNew { .. })), "{error}");
        writer.set_version(2);
        writer.send(&newer).await.unwrap();
        let mut reader = FrameReader::new(writer.stream.as_slice());
        assert_eq!(reader.next().await.unwrap(), Some(newer));
    }
}
