//! The examples in Python, against the brightness of the pixels.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use common::{Made, brightnesses, images, samples, video};
use flow_rewards::{Reward, RewardError};
use flow_rewards_remote::{CommandReward, CommandSettings, RemoteReward, RemoteSettings};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Whether there is a Python; a test that leaves something out says so.
fn has_python() -> bool {
    let has = Command::new("python3")
        .arg("--version")
        .output()
        .is_ok_and(|it| it.status.success());
    if !has {
        test_support::skipped("there is no python3");
    }
    has
}

/// A server that is ended with the test.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(example: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("python3");
        command.arg(examples().join(example)).args(arguments);
        Self::of(command.args(["--port", "0"]))
    }

    /// The example behind TLS, with the certificate and the key in `folder`.
    fn start_with_tls(folder: &Path) -> Self {
        const PROGRAM: &str = "import ssl, sys\n\
            sys.path.insert(0, sys.argv[1])\n\
            import reward_server as example\n\
            server = example.ThreadingHTTPServer(('127.0.0.1', 0), example.Handler)\n\
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n\
            context.load_cert_chain(sys.argv[2] + '/server.pem', sys.argv[2] + '/server.key')\n\
            server.socket = context.wrap_socket(server.socket, server_side=True)\n\
            print(f'https://localhost:{server.server_port}', flush=True)\n\
            server.serve_forever()\n";
        let mut command = Command::new("python3");
        Self::of(command.args(["-B", "-c", PROGRAM]).arg(examples()).arg(folder))
    }

    /// The server that `command` starts and that prints its URL.
    fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("python3 starts");
        let mut url = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut url).expect("a line");
        Self {
            child,
            url: url.trim().to_owned(),
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn made() -> Vec<Made> {
    let mut made = images(9);
    made.push(video(3, 2));
    made
}

#[test]
fn the_server_of_the_example_gives_the_brightness_and_may_be_killed() {
    if !has_python() {
        return;
    }
    let (mut first, second) = (
        Server::start("reward_server.py", &[]),
        Server::start("reward_server.py", &[]),
    );
    let settings = RemoteSettings {
        batch: 2,
        backoff_s: 0.01,
        ..RemoteSettings::new([&first.url, &second.url].map(String::as_str))
    };
    let reward = RemoteReward::new(settings, &|_| None).unwrap();
    let made = made();
    assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
    first.kill();
    assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
}

/// A folder with an authority's certificate, `authority.pem`, and a server's for `localhost` that it signed; none where there is no
/// OpenSSL 3.
fn certificates() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, extensions: &[&str], signer: &[&str]| {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
        Command::new("openssl")
            .current_dir(folder.path())
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ])
            .args(["-keyout", &key, "-out", &certificate, "-days", "2"])
            .args(["-subj", &format!("/CN={name}")])
            .args(extensions.iter().flat_map(|extension| ["-addext", *extension]))
            .args(signer)
            .output()
            .is_ok_and(|done| done.status.success())
    };
    let both = made("authority", &["basicConstraints=critical,CA:TRUE"], &[])
        && made(
            "server",
            &[
                "basicConstraints=critical,CA:FALSE",
                "subjectAltName=DNS:localhost",
            ],
            &["-CA", "authority.pem", "-CAkey", "authority.key"],
        );
    if !both {
        test_support::skipped("there is no OpenSSL 3, which makes the certificates");
    }
    both.then_some(folder)
}

#[test]
fn a_server_behind_tls_is_asked_only_if_its_authority_is_trusted() {
    if !has_python() {
        return;
    }
    let Some(folder) = certificates() else { return };
    let server = Server::start_with_tls(folder.path());
    let settings = || RemoteSettings {
        retries: 0,
        ..RemoteSettings::new([server.url.as_str()])
    };
    let trusted = folder.path().join("authority.pem").display().to_string();
    let variable = |name: &str| (name == "SSL_CERT_FILE").then(|| trusted.clone());
    let made = made();
    let reward = RemoteReward::new(settings(), &variable).unwrap();
    assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
    // The authorities of browsers do not know it.
    let stranger = RemoteReward::new(settings(), &|_| None).unwrap();
    match stranger.score(&samples(&made)) {
        Err(RewardError::Sample { problem, .. }) => assert!(problem.contains("certificate"), "{problem}"),
        other => panic!("{other:?}"),
    }
    // Nor is it asked under a name that its certificate does not have.
    let other_name = RemoteSettings {
        servers: vec![server.url.replace("localhost", "127.0.0.1")],
        ..settings()
    };
    let other_name = RemoteReward::new(other_name, &variable).unwrap();
    assert!(other_name.score(&samples(&made)).is_err());
    let missing = RemoteReward::new(settings(), &|name: &str| {
        (name == "SSL_CERT_FILE").then(|| "nowhere.pem".to_owned())
    });
    assert!(missing.unwrap_err().to_string().contains("nowhere.pem"));
}

#[test]
fn the_program_of_the_example_gives_the_brightness() {
    if !has_python() {
        return;
    }
    let settings = CommandSettings {
        processes: 2,
        ..CommandSettings::new(["python3", "reward_command.py"])
    };
    let reward = CommandReward::new(settings, &examples()).unwrap();
    let made = made();
    assert_eq!(reward.score(&samples(&made)), Ok(brightnesses(&made)));
}

/// A server of flow_grpo's sort that answers every request with the pickle `answer`. Gives its URL and the requests that came.
fn flow_grpo(answer: Vec<u8>) -> (String, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                match line.to_ascii_lowercase().split_once(':') {
                    Some(("content-length", value)) => length = value.trim().parse().unwrap(),
                    None if line.trim().is_empty() => break,
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                answer.len()
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&answer).unwrap();
            let _ = sender.send(body);
        }
    });
    (url, requests)
}

fn recorded(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/flow_grpo");
    std::fs::read(folder.join(format!("response_{name}.pkl"))).unwrap()
}

/// The scores of three images by an adapter of `kind` before a server that answers with `answer`, and the last request of that.
fn adapted(kind: &str, more: &[&str], answer: Vec<u8>) -> (Result<Vec<f32>, RewardError>, Option<Vec<u8>>) {
    let (url, requests) = flow_grpo(answer);
    let arguments: Vec<&str> = [url.as_str(), "--kind", kind]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
    let adapter = Server::start("flow_grpo_adapter.py", &arguments);
    let settings = RemoteSettings {
        metadata: true,
        retries: 0,
        ..RemoteSettings::new([adapter.url.as_str()])
    };
    let scores = RemoteReward::new(settings, &|_| None)
        .unwrap()
        .score(&samples(&images(3)));
    (scores, requests.try_iter().last())
}

#[test]
fn the_adapter_reads_what_flow_grpos_servers_answer() {
    if !has_python() {
        return;
    }
    for (kind, more, answer, wanted) in [
        ("deqa", &[][..], "floats", [0.25, 0.5, 0.75]),
        ("unified", &[], "numpy", [0.25, 0.5, 0.75]),
        ("unified", &[], "array", [0.25, 0.5, 0.75]),
        ("geneval", &[], "geneval", [1.0, 0.5, 0.0]),
        (
            "geneval",
            &["--key", "strict_rewards"],
            "geneval",
            [1.0, 0.0, 0.0],
        ),
    ] {
        let (scores, request) = adapted(kind, more, recorded(answer));
        assert_eq!(scores, Ok(wanted.to_vec()), "{kind}, {answer}");
        let request = request.expect("a request");
        let has = |part: &[u8]| request.windows(part.len()).any(|found| found == part);
        assert!(has(b"\x89PNG\r\n\x1a\n") && has(b"images"), "{kind}");
        assert_eq!(has(b"prompts"), kind == "unified", "{kind}");
        assert_eq!(has(b"meta_datas") && has(b"count"), kind == "geneval", "{kind}");
    }
}

#[test]
fn the_adapter_runs_nothing_of_an_answer_and_makes_up_no_score() {
    if !has_python() {
        return;
    }
    // `os.system` with an argument, in protocol 0; and an answer without the list that is asked for.
    let bad = b"cposix\nsystem\n(S'exit 7'\ntR.".to_vec();
    for (answer, words) in [(bad, "posix.system"), (recorded("geneval"), "no `outputs`")] {
        match adapted("deqa", &[], answer).0 {
            Err(RewardError::Sample { problem, .. }) => assert!(problem.contains(words), "{problem}"),
            other => panic!("{other:?}"),
        }
    }
}
