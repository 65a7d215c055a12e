//! A coordinator that does not lead keeps its agents' connections, so that it knows them all when it does. Then each is
//! asked to say Hello again: some at a time, so that the first of them are of use while the last still wait.

use phalanx_common::ids::Term;
use phalanx_common::wire::{FromAgent, Hello, ToAgent};
use phalanx_transport::{ControlReader, ControlWriter, FrameError};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::credential::Credential;
use super::session::{Ending, check, clean};
use super::{HELLO_TIMEOUT, SILENCE, Shared, code};

/// Agents that are asked for a Hello at once: as many as may be let in at once otherwise.
pub(super) const PROMOTIONS: usize = 256;

/// Waits until this coordinator leads and the agent has said who it is now. The permit is to be kept until the loop
/// has heard of it.
pub(super) async fn wait(
    reader: &mut ControlReader,
    writer: &mut ControlWriter,
    credential: &mut Credential,
    shared: &Shared,
) -> Result<(Box<Hello>, OwnedSemaphorePermit), Ending> {
    let mut term = shared.term.clone();
    let leads = async {
        // An error means that the server stops; then the connection ends by itself.
        if term.wait_for(|term| *term != Term::default()).await.is_err() {
            return None;
        }
        shared.promotions.clone().acquire_owned().await.ok()
    };
    let mut leads = std::pin::pin!(leads);
    let permit = loop {
        tokio::select! {
            permit = &mut leads => match permit {
                Some(permit) => break permit,
                None => return Err(Ending::Close(code::STOPPING, "the coordinator stops".to_owned())),
            },
            heard = timeout(SILENCE, reader.next::<FromAgent>()) => {
                let heard = heard.map_err(|_| silent("nothing was heard for 6 s"))?;
                listen(heard, credential)?;
            }
            why = credential.ended() => return Err(Ending::Close(code::IDENTITY, why)),
        }
    };
    let hello = timeout(HELLO_TIMEOUT, hello(reader, writer, credential, shared))
        .await
        .map_err(|_| silent("no Hello within 5 s after it was asked for"))??;
    Ok((hello, permit))
}

fn silent(why: &str) -> Ending {
    Ending::Close(code::SILENT, why.to_owned())
}

/// Takes what an agent may say to a coordinator that does not lead. What was said to its predecessor, or before it
/// knew, is told anew by the next Hello.
fn listen(heard: Result<Option<FromAgent>, FrameError>, credential: &mut Credential) -> Result<(), Ending> {
    match heard {
        Ok(Some(FromAgent::Token(token))) => credential.renew(token),
        Ok(Some(_)) => {}
        Ok(None) => return Err(Ending::Close(code::INVALID, "the control stream has ended".to_owned())),
        Err(FrameError::Stream(error)) => return Err(Ending::Ended(error.to_string())),
        Err(error) => return Err(Ending::Close(code::INVALID, error.to_string())),
    }
    Ok(())
}

/// Asks for a Hello and answers it.
async fn hello(
    reader: &mut ControlReader,
    writer: &mut ControlWriter,
    credential: &mut Credential,
    shared: &Shared,
) -> Result<Box<Hello>, Ending> {
    let unsent = |error: FrameError| Ending::Ended(error.to_string());
    writer.send(&ToAgent::SayHello).await.map_err(unsent)?;
    loop {
        let heard = reader.next::<FromAgent>().await;
        if !matches!(heard, Ok(Some(FromAgent::Hello(_)))) {
            listen(heard, credential)?;
            continue;
        }
        let (mut hello, version) =
            check(heard, credential).map_err(|(_, message)| Ending::Close(code::INVALID, message))?;
        let (cluster, term) = (shared.cluster.clone(), *shared.term.borrow());
        writer.send(&ToAgent::Welcome { version, cluster, term }).await.map_err(unsent)?;
        clean(&mut hello, shared);
        return Ok(hello);
    }
}
