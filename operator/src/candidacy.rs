//! The Lease on a thread of its own, so that nothing which this process is at delays a renewal.
//!
//! The thread has its own runtime and therefore its own connection. It ends when the lead is lost or
//! given back, and with whoever asked for it.

use std::{io, thread::JoinHandle};

use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use crate::lease::{LeaseStore, Lost, acquire};

/// A thread that waits for the lead, and then keeps it.
pub struct Candidacy {
    led: oneshot::Receiver<Result<Held, Lost>>,
}

/// The lead, as the rest of the process sees it.
pub struct Held {
    epoch: u64,
    renewals: watch::Receiver<Instant>,
    lost: oneshot::Receiver<Lost>,
    give_back: oneshot::Sender<()>,
    over: oneshot::Receiver<()>,
}

impl Candidacy {
    /// Begins, under a name that no other process has; `looked` is called after every look at another's
    /// Lease. The board is made in the thread: what it is made of may belong to its runtime.
    ///
    /// # Errors
    /// There are no more threads.
    pub fn begin<B: LeaseStore + 'static>(
        board: impl FnOnce() -> Result<B, kube::Error> + Send + 'static,
        name: String,
        looked: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (mut tell, led) = oneshot::channel();
        let keep = async move {
            let board = match board() {
                Ok(board) => board,
                Err(error) => {
                    // Whoever has gone has ended already.
                    let _ = tell.send(Err(Lost::without_a_board(&error)));
                    return;
                }
            };
            let mut leadership = tokio::select! {
                leadership = acquire(board, &name, looked) => leadership,
                // Nobody waits for it any more.
                () = tell.closed() => return,
            };
            let (lose, lost) = oneshot::channel();
            let (give_back, given_back) = oneshot::channel();
            // Dropped with everything else of this thread's, which says that it is over.
            let (_over, over) = oneshot::channel();
            let held = Held {
                epoch: leadership.epoch(),
                renewals: leadership.renewals(),
                lost,
                give_back,
                over,
            };
            if tell.send(Ok(held)).is_err() {
                return leadership.release().await;
            }
            tokio::select! {
                why = leadership.keep() => {
                    // Likewise.
                    let _ = lose.send(why);
                }
                told = given_back => {
                    if told.is_ok() {
                        leadership.release().await;
                    }
                }
            }
        };
        let _: JoinHandle<()> = std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || runtime.block_on(keep))?;
        Ok(Self { led })
    }

    /// Until this process leads.
    ///
    /// # Errors
    /// Nobody can be asked for it, or the thread has ended.
    pub async fn lead(self) -> Result<Held, Lost> {
        self.led.await.unwrap_or_else(|_| Err(Lost::ended()))
    }
}

impl Held {
    /// What this leader's commands carry: higher than any leader's before it.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// When the last request was sent by which the Lease was renewed.
    pub fn renewals(&self) -> watch::Receiver<Instant> {
        self.renewals.clone()
    }

    /// Until it is lost. May be dropped at any time.
    pub async fn lost(&mut self) -> Lost {
        match (&mut self.lost).await {
            Ok(lost) => lost,
            Err(_) => Lost::ended(),
        }
    }

    /// Gives it back, so that the next leader need not wait; returns when that is done.
    pub async fn release(self) {
        if self.give_back.send(()).is_ok() {
            // Nothing is ever sent: the thread's end is what is waited for.
            let _ = self.over.await;
        }
    }
}
