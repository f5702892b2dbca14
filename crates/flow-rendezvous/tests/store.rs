//! The store: PyTorch's bytes, waits that end, and ranks that come together or say why not.

use flow_rendezvous::{Launch, Launcher, Membership, RendezvousError, Store, StorePlace, StoreServer};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);

fn server() -> StoreServer {
    StoreServer::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port")
}

fn client(server: &StoreServer) -> Store {
    Store::connect("127.0.0.1", server.address().port(), PATIENCE).expect("the store answers")
}

/// A text or value as PyTorch sends it.
fn counted(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_ne_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

#[test]
fn the_server_answers_the_bytes_that_pytorchs_client_sends() {
    let server = server();
    let mut stream = TcpStream::connect(server.address()).unwrap();
    // Validate; ping; set a; add n twice; check a; check missing; wait a; get a.
    let mut sent = vec![0];
    sent.extend(0x3C85_F7CE_u32.to_ne_bytes());
    sent.push(13);
    sent.extend(77u32.to_ne_bytes());
    sent.push(1);
    sent.extend([counted("a"), counted("value")].concat());
    for amount in [2i64, -5] {
        sent.push(4);
        sent.extend(counted("n"));
        sent.extend(amount.to_ne_bytes());
    }
    for key in ["a", "missing"] {
        sent.push(5);
        sent.extend(1u64.to_ne_bytes());
        sent.extend(counted(key));
    }
    sent.push(6);
    sent.extend(2u64.to_ne_bytes());
    sent.extend([counted("a"), counted("n")].concat());
    for key in ["a", "n"] {
        sent.push(3);
        sent.extend(counted(key));
    }
    stream.write_all(&sent).unwrap();
    let mut wanted = 77u32.to_ne_bytes().to_vec();
    wanted.extend(2i64.to_ne_bytes());
    wanted.extend((-3i64).to_ne_bytes());
    wanted.extend([0, 1, 0]);
    wanted.extend([counted("value"), counted("-3")].concat());
    let mut answered = vec![0; wanted.len()];
    stream.read_exact(&mut answered).unwrap();
    assert_eq!(answered, wanted);
}

#[test]
fn a_key_that_comes_later_is_waited_for_and_one_that_never_comes_ends_the_wait() {
    let server = server();
    let (mut waiting, mut other) = (client(&server), client(&server));
    let later = thread::spawn(move || {
        thread::sleep(Duration::from_millis(60));
        other.set("later", b"here").unwrap();
    });
    assert_eq!(
        waiting.wait("later", "rank 1", "abort", PATIENCE).unwrap(),
        b"here"
    );
    later.join().unwrap();
    let begun = Instant::now();
    let text = waiting
        .wait("never", "rank 2 of 4", "abort", SHORT)
        .unwrap_err()
        .to_string();
    assert!(
        begun.elapsed() < PATIENCE && text.contains("rank 2 of 4"),
        "{text}"
    );
}

#[test]
fn what_is_no_store_is_refused_and_nobody_there_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let stranger = thread::spawn(move || {
        // Answers once, with something else, and is gone.
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
    });
    let text = Store::connect("127.0.0.1", port, SHORT).unwrap_err().to_string();
    stranger.join().unwrap();
    assert!(
        text.contains(&format!("127.0.0.1:{port}")) && text.contains("MASTER_ADDR"),
        "{text}"
    );
}

fn launch(rank: usize, ranks: usize, port: u16, attempt: u64) -> Launch {
    Launch {
        launcher: Launcher::Torchrun,
        rank,
        ranks,
        local_rank: rank,
        local_ranks: None,
        attempt,
        store: StorePlace {
            host: "127.0.0.1".into(),
            port,
            own: false,
        },
    }
}

#[test]
fn ranks_share_values_in_order_also_after_a_restart_in_the_same_store() {
    let server = server();
    let port = server.address().port();
    for attempt in [0, 1] {
        let ranks = (0..3).map(|rank| {
            thread::spawn(move || {
                let mut joined = Membership::join(launch(rank, 3, port, attempt), PATIENCE).unwrap();
                assert_eq!(joined.world().local_ranks, 3, "counted by the machines' names");
                joined
                    .share("address", format!("{attempt}:{rank}").as_bytes())
                    .unwrap()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        for rank in ranks {
            let wanted: Vec<Vec<u8>> = (0..3)
                .map(|rank| format!("{attempt}:{rank}").into_bytes())
                .collect();
            assert_eq!(rank.join().unwrap(), wanted);
        }
    }
}

#[test]
fn a_rank_that_gives_up_ends_the_waits_of_the_others_with_its_words() {
    let server = server();
    let port = server.address().port();
    let with_neighbours = |rank| Launch {
        local_ranks: Some(2),
        ..launch(rank, 2, port, 0)
    };
    let mut first = Membership::join(with_neighbours(0), PATIENCE).unwrap();
    let mut second = Membership::join(with_neighbours(1), PATIENCE).unwrap();
    let watch = first.watch().unwrap();
    assert_eq!(watch.aborted(), None);
    let waiting = thread::spawn(move || first.share("address", b"x").map(|_| first));
    thread::sleep(Duration::from_millis(30));
    second.abort("rank 1: there is no file `a.toml`").unwrap();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(
        matches!(&error, RendezvousError::Aborted(words) if words.contains("a.toml")),
        "{error}"
    );
    let until = Instant::now() + PATIENCE;
    while watch.aborted().is_none() && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        watch.aborted().as_deref(),
        Some("rank 1: there is no file `a.toml`")
    );
}

#[test]
fn a_store_that_is_gone_is_seen_by_who_watches() {
    let server = server();
    let alone = Launch {
        local_ranks: Some(2),
        ..launch(0, 2, server.address().port(), 0)
    };
    let joined = Membership::join(alone, PATIENCE).unwrap();
    let watch = joined.watch().unwrap();
    drop(server);
    let until = Instant::now() + PATIENCE;
    while watch.aborted().is_none() && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(watch.aborted().is_some_and(|words| words.contains("is gone")));
}

#[test]
fn a_launcher_that_has_lost_a_process_ends_the_waits_for_it_unless_a_rank_spoke_first() {
    let server = server();
    let port = server.address().port();
    let with_neighbours = |attempt| Launch {
        local_ranks: Some(2),
        ..launch(0, 2, port, attempt)
    };
    for (attempt, said) in [(0, "process 1 was ended from outside"), (1, "rank 1: no file")] {
        let mut first = Membership::join(with_neighbours(attempt), PATIENCE).unwrap();
        if attempt == 1 {
            first.abort(said).unwrap();
            // The connection's questions are answered in order: after this one that was there.
            assert!(first.share("address", b"x").is_err());
        }
        server.abort(attempt, "process 1 was ended from outside");
        let error = first.share("address", b"x").unwrap_err();
        assert!(
            matches!(&error, RendezvousError::Aborted(words) if words == said),
            "{error}"
        );
    }
}
