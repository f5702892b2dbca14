//! Ranks over TCP and threads: what they gather, and what is said when one is missing.

use flow_exchange::{Alone, Exchange, HostValues, Lanes, Lost, ValueType, Values, in_process, tcp};
use flow_rendezvous::{Launch, Launcher, Membership, RendezvousError, StorePlace, StoreServer};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// What torchrun says of a rank whose store is at `port` of this machine.
fn launch(rank: usize, ranks: usize, port: u16) -> Launch {
    Launch {
        launcher: Launcher::Torchrun,
        rank,
        ranks,
        local_rank: rank,
        local_ranks: Some(ranks),
        attempt: 0,
        store: StorePlace {
            host: "127.0.0.1".into(),
            port,
            own: false,
        },
    }
}

fn server() -> (StoreServer, u16) {
    let server = StoreServer::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let port = server.address().port();
    (server, port)
}

/// `ranks` ranks over TCP, in threads of this process.
fn over_tcp(ranks: usize, timeout: Duration) -> (StoreServer, Vec<Arc<dyn Exchange>>) {
    let (server, port) = server();
    let threads: Vec<_> = (0..ranks)
        .map(|rank| {
            thread::spawn(move || {
                let joined = Membership::join(launch(rank, ranks, port), PATIENCE);
                let joined = joined.expect("the store is there");
                Arc::new(tcp(joined, timeout).expect("all ranks come")) as Arc<dyn Exchange>
            })
        })
        .collect();
    let ranks = threads.into_iter().map(|thread| thread.join().expect("no panic"));
    (server, ranks.collect())
}

#[test]
fn a_rank_that_is_gone_before_it_is_reached_is_named_and_the_others_are_told() {
    let (_server, port) = server();
    // Nobody listens there any more.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let others = thread::spawn(move || {
        let mut first = Membership::join(launch(0, 2, port), PATIENCE).unwrap();
        first.share("address", format!("{nobody} 7").as_bytes()).unwrap();
        first.share("what never comes", b"").unwrap_err().to_string()
    });
    let second = Membership::join(launch(1, 2, port), PATIENCE).unwrap();
    let begun = Instant::now();
    let error = tcp(second, PATIENCE).unwrap_err();
    assert!(
        matches!(&error, RendezvousError::Unreachable { rank: 0, .. }),
        "{error}"
    );
    let told = others.join().unwrap();
    assert!(told.contains("rank 1: rank 0 does not answer"), "{told}");
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
}

fn on_each<T: Send + 'static>(
    ranks: Vec<Arc<dyn Exchange>>,
    of: impl Fn(&dyn Exchange) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let threads: Vec<_> = ranks
        .into_iter()
        .map(|exchange| {
            let of = of.clone();
            thread::spawn(move || of(&*exchange))
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect()
}

fn everything(exchange: &dyn Exchange) -> (Vec<Vec<u8>>, Vec<f32>, Vec<f32>) {
    let world = exchange.world();
    // Of different lengths, one of them empty.
    let gathered = exchange.gather(&vec![world.rank as u8; world.rank]).unwrap();
    let mut sum = HostValues((0..1000).map(|index| index as f32 + world.rank as f32).collect());
    let lanes = Lanes::new(world.ranks);
    exchange.sum(&lanes, &mut [&mut sum as &mut dyn Values]).unwrap();
    let mut first = HostValues(vec![world.rank as f32, 7.0]);
    exchange.broadcast(&mut first, world.ranks - 1).unwrap();
    exchange.check().unwrap();
    (gathered, sum.0, first.0)
}

#[test]
fn ranks_over_tcp_and_threads_gather_sum_and_broadcast_the_same() {
    let (_server, tcp) = over_tcp(3, PATIENCE);
    for ranks in [tcp, in_process(3, PATIENCE)] {
        for (gathered, sum, first) in on_each(ranks, everything) {
            assert_eq!(gathered, [vec![], vec![1], vec![2, 2]]);
            assert!(
                sum.iter()
                    .enumerate()
                    .all(|(index, value)| *value == 3.0 * index as f32 + 3.0)
            );
            assert_eq!(first, [2.0, 7.0]);
        }
    }
    let (gathered, sum, first) = everything(&Alone);
    assert_eq!((gathered, sum[9], first), (vec![vec![]], 9.0, vec![0.0, 7.0]));
}

/// A row of which each rank gives a part, none of rank 1, and values that rank 2 gives to rank 0 alone.
fn shared_and_transferred(exchange: &dyn Exchange) -> (Vec<f32>, Vec<f32>) {
    let own = exchange.world().rank;
    let counts = [2, 0, 3];
    let mut row = HostValues(vec![-1.0; 5]);
    let begin: usize = counts[..own].iter().sum();
    (begin..begin + counts[own]).for_each(|at| row.0[at] = (10 * own + at) as f32);
    exchange.share(&mut row, &counts).unwrap();
    let mut moved = HostValues(vec![own as f32; 2]);
    exchange.transfer(&mut moved, 2, 0).unwrap();
    // To itself nothing moves, and what follows is in step.
    exchange.transfer(&mut HostValues::default(), 1, 1).unwrap();
    exchange.gather(b"").unwrap();
    (row.0, moved.0)
}

#[test]
fn a_row_is_put_together_from_the_parts_of_all_ranks_and_values_go_to_one_rank_alone() {
    let (_server, tcp) = over_tcp(3, PATIENCE);
    for ranks in [tcp, in_process(3, PATIENCE)] {
        for (rank, (row, moved)) in on_each(ranks, shared_and_transferred).into_iter().enumerate() {
            assert_eq!(row, [0.0, 1.0, 22.0, 23.0, 24.0], "rank {rank}");
            let wanted = if rank == 0 { 2.0 } else { rank as f32 };
            assert_eq!(moved, [wanted; 2], "rank {rank}");
        }
    }
    let mut row = HostValues(vec![1.0, 2.0]);
    Alone.share(&mut row, &[2]).unwrap();
    assert_eq!(row.0, [1.0, 2.0]);
}

/// Values of 16 bits, as f32.
struct Narrow(Vec<f32>);

impl Values for Narrow {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn value_type(&self) -> ValueType {
        ValueType::Bf16
    }

    fn read(&self) -> Vec<f32> {
        self.0.clone()
    }

    fn write(&mut self, values: Vec<f32>) {
        self.0 = values;
    }

    fn as_any(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

#[test]
fn a_row_of_16_bits_keeps_every_bit_of_them() {
    // Numbers of all sizes and signs, subnormal ones, zeros and infinities, as upper halves of weights may be.
    let bits: Vec<u32> = (0..=0xFFFFu32)
        .step_by(5)
        .chain([0x0001, 0x8000, 0x7F80, 0xFF80])
        .map(|upper| upper << 16)
        .filter(|bits| !f32::from_bits(*bits).is_nan())
        .collect();
    let counts = [bits.len() / 2, 0, bits.len() - bits.len() / 2];
    let (_server, tcp) = over_tcp(3, PATIENCE);
    for ranks in [tcp, in_process(3, PATIENCE)] {
        let all = bits.clone();
        let rows = on_each(ranks, move |exchange| {
            let own = exchange.world().rank;
            let begin: usize = counts[..own].iter().sum();
            let part = begin..begin + counts[own];
            let value = |(at, bits): (usize, &u32)| match part.contains(&at) {
                true => f32::from_bits(*bits),
                false => -0.0,
            };
            let mut row = Narrow(all.iter().enumerate().map(value).collect());
            exchange.share(&mut row, &counts).unwrap();
            row.0.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        });
        assert!(rows.iter().all(|row| *row == bits));
    }
}

#[test]
fn a_rank_that_is_gone_while_a_row_is_shared_is_named() {
    let outcomes = on_each(in_process(2, PATIENCE), |exchange| {
        if exchange.world().rank == 1 {
            exchange.abort("its disk is full");
            return None;
        }
        let mut row = HostValues(vec![0.0; 4]);
        let lost = exchange.share(&mut row, &[1, 3]).unwrap_err();
        Some(lost.to_string())
    });
    let said = outcomes[0].as_deref().unwrap_or_default();
    assert!(said.contains("rank 1 stopped: its disk is full"), "{said}");
}

#[test]
fn a_rank_that_stops_ends_the_waits_of_all_others_with_its_words() {
    let (_server, tcp) = over_tcp(3, PATIENCE);
    for ranks in [tcp, in_process(3, PATIENCE)] {
        let begun = Instant::now();
        let outcomes = on_each(ranks, |exchange| {
            if exchange.world().rank == 1 {
                exchange.abort("the loss is not finite");
                return None;
            }
            let lost = exchange.gather(b"").unwrap_err();
            // As a run does that ends because of it.
            exchange.abort(&lost.to_string());
            Some(lost)
        });
        assert!(begun.elapsed() < PATIENCE / 2);
        for lost in [&outcomes[0], &outcomes[2]] {
            let wanted = Lost::Stopped {
                rank: 1,
                words: "the loss is not finite".into(),
            };
            assert_eq!(lost.as_ref(), Some(&wanted));
        }
    }
}

#[test]
fn a_rank_that_says_nothing_is_named_when_the_time_is_over() {
    let mut ranks = in_process(2, Duration::from_millis(300));
    let silent = ranks.pop().unwrap();
    let text = ranks[0].gather(b"").unwrap_err().to_string();
    assert!(
        text.contains("rank 1 of 2") && text.contains("distributed.timeout_s"),
        "{text}"
    );
    drop(silent);
}

#[test]
fn a_rank_that_ends_while_others_wait_is_named_at_once() {
    let (_server, tcp) = over_tcp(2, PATIENCE);
    for mut ranks in [tcp, in_process(2, PATIENCE)] {
        let (sender, receiver) = mpsc::channel();
        let first = ranks.remove(0);
        let waiting = thread::spawn(move || {
            sender.send(()).unwrap();
            first.gather(b"")
        });
        receiver.recv().unwrap();
        drop(ranks);
        let lost = waiting.join().unwrap().unwrap_err();
        assert!(matches!(lost, Lost::Ended { rank: 1, .. }), "{lost}");
    }
}

#[test]
fn ranks_that_do_different_things_stop_with_words() {
    let outcomes = on_each(in_process(2, PATIENCE), |exchange| {
        let outcome = match exchange.world().rank {
            0 => exchange.gather(b"").map(|_| ()),
            _ => exchange.sum(&Lanes::new(2), &mut [&mut HostValues(vec![1.0])]),
        };
        let lost = outcome.unwrap_err();
        exchange.abort(&lost.to_string());
        lost
    });
    let said: Vec<String> = outcomes.iter().map(ToString::to_string).collect();
    assert!(
        said.iter().any(|text| text.contains("does something else")),
        "{said:?}"
    );
    let outcomes = on_each(in_process(2, PATIENCE), |exchange| {
        let mut values = HostValues(vec![1.0; 2 + exchange.world().rank]);
        let lost = exchange.sum(&Lanes::new(2), &mut [&mut values]).unwrap_err();
        exchange.abort(&lost.to_string());
        lost.to_string()
    });
    assert!(
        outcomes.iter().any(|text| text.contains("values where")),
        "{outcomes:?}"
    );
}
