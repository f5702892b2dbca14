//! Ranks that are threads of one process.

use crate::exchange::Exchange;
use crate::frame::Frame;
use crate::ranks::{Event, Link, Ranks};
use flow_rendezvous::World;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// To the inbox of another thread.
#[derive(Debug)]
struct ToThread {
    own: usize,
    inbox: Sender<(usize, Event)>,
}

impl Link for ToThread {
    fn send(&self, frame: &Frame) -> io::Result<()> {
        let sent = self.inbox.send((self.own, Event::Frame(frame.clone())));
        sent.map_err(|_| io::Error::other("its thread has ended"))
    }
}

/// Exchanges between `ranks` threads of this process, one for each of them; a wait takes `timeout` at most.
pub fn in_process(ranks: usize, timeout: Duration) -> Vec<Arc<dyn Exchange>> {
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..ranks).map(|_| channel()).unzip();
    let inboxes = inboxes.into_iter().enumerate();
    inboxes
        .map(|(rank, inbox)| {
            let world = World {
                rank,
                ranks,
                local_rank: rank,
                local_ranks: ranks,
                attempt: 0,
            };
            let links = senders.iter().enumerate().map(|(to, inbox)| {
                let link = ToThread {
                    own: rank,
                    inbox: inbox.clone(),
                };
                (to != rank).then(|| Box::new(link) as Box<dyn Link>)
            });
            Arc::new(Ranks::new(world, timeout, links.collect(), inbox)) as Arc<dyn Exchange>
        })
        .collect()
}
