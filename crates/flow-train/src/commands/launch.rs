//! `launch`: several processes on this machine that train as one run.

use crate::arguments::LaunchArguments;
use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_rendezvous::StoreServer;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(50);

/// How long the others may take to see by themselves that one is gone. Then those that still wait for it to come are told.
const NOTICE: Duration = Duration::from_secs(1);

/// How long the others may take to end by themselves after one failed, and then after they were asked to.
const GRACE: Duration = Duration::from_secs(20);

/// How often the processes were started before: they are started once.
const ATTEMPT: u64 = 0;

/// What a process ends with that saved its state because it was asked to.
const INTERRUPTED: i32 = 130;

struct Rank {
    child: Child,
    ended: Option<ExitStatus>,
    output: Vec<JoinHandle<()>>,
}

/// Starts the processes, passes on what they say and the signals that come, and ends when they have.
pub fn run(arguments: &LaunchArguments) -> Result<(), Failure> {
    let count = usize::from(arguments.processes);
    let signals = Arc::new(AtomicUsize::new(0));
    let seen = signals.clone();
    ctrlc::set_handler(move || {
        seen.fetch_add(1, Ordering::SeqCst);
    })
    .or_failed()?;
    // Held here, so that its port is free for sure, and it lasts as long as any of the processes.
    let store = StoreServer::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).or_failed()?;
    let program = std::env::current_exe().or_failed()?;
    let mut ranks = Vec::new();
    for rank in 0..count {
        let mut command = Command::new(&program);
        command
            .args(&arguments.command)
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", count.to_string())
            .env("LOCAL_WORLD_SIZE", count.to_string())
            .env("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string())
            .env("MASTER_PORT", store.address().port().to_string())
            .env("TORCHELASTIC_USE_AGENT_STORE", "True")
            .env("TORCHELASTIC_RESTART_COUNT", ATTEMPT.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A group of its own: Ctrl-C reaches this process alone, which passes it on.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        match command.spawn() {
            Ok(child) => ranks.push(Rank::of(rank, child)),
            Err(error) => {
                ranks.iter_mut().for_each(Rank::kill);
                return Err(Failure::Run(format!("cannot start process {rank}: {error}")));
            }
        }
    }
    let first = watch(&mut ranks, &signals, &store);
    for rank in &mut ranks {
        rank.output.drain(..).for_each(|output| {
            let _ = output.join();
        });
    }
    match first {
        None => Ok(()),
        Some((_, INTERRUPTED)) => Err(Failure::Interrupted),
        Some((rank, 2)) => Err(Failure::Input(format!(
            "process {rank} refused its input; see above"
        ))),
        Some((rank, code)) => Err(Failure::Run(format!(
            "process {rank} failed first (exit code {code}); see what it said above"
        ))),
    }
}

/// Waits until all have ended. Gives the first that failed, with its exit code.
fn watch(ranks: &mut [Rank], signals: &AtomicUsize, store: &StoreServer) -> Option<(usize, i32)> {
    let mut passed_on = 0;
    let mut first: Option<(usize, i32)> = None;
    let mut failed_at: Option<Instant> = None;
    let mut untold: Option<String> = None;
    let mut asked = false;
    loop {
        let wanted = signals.load(Ordering::SeqCst);
        if wanted > passed_on {
            passed_on = wanted;
            ranks.iter_mut().for_each(Rank::terminate);
        }
        for (index, rank) in ranks.iter_mut().enumerate() {
            let Some(status) = rank.look() else { continue };
            let code = status.code().unwrap_or(1);
            // What is wrong with the input is the cause, whoever ends first because of it.
            let is_cause = code == 2 && first.is_some_and(|(_, code)| code != 2);
            if code == 0 || first.is_some() && !is_cause {
                continue;
            }
            first = Some((index, code));
            if code != INTERRUPTED {
                failed_at = Some(Instant::now());
                let how = match status.code() {
                    Some(code) => format!("process {index} ended with exit code {code}"),
                    None => format!("process {index} was ended from outside ({status})"),
                };
                if status.code().is_none() {
                    terminal::note(&how);
                }
                untold = Some(how);
            }
        }
        if ranks.iter().all(|rank| rank.ended.is_some()) {
            return first;
        }
        if let Some(since) = failed_at {
            if since.elapsed() > NOTICE
                && let Some(how) = untold.take()
            {
                store.abort(ATTEMPT, &how);
            }
            // Those that wait for the lost one end by themselves, with words.
            if since.elapsed() > 2 * GRACE {
                ranks.iter_mut().for_each(Rank::kill);
            } else if since.elapsed() > GRACE && !asked {
                asked = true;
                ranks.iter_mut().for_each(Rank::terminate);
            }
        }
        std::thread::sleep(LOOK);
    }
}

impl Rank {
    fn of(rank: usize, mut child: Child) -> Self {
        // Lines of several processes are not mixed.
        static WRITING: Mutex<()> = Mutex::new(());
        let mut output = Vec::new();
        let mut pass_on = |from: Option<Box<dyn Read + Send>>, to_error: bool| {
            let Some(from) = from else { return };
            let prefix = format!("[{rank}] ");
            let each = move || {
                for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
                    let text = [prefix.as_bytes(), line.as_slice(), b"\n"].concat();
                    let _held = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
                    // Whoever reads no more misses the rest; the processes go on.
                    let _ = match to_error {
                        true => std::io::stderr().write_all(&text),
                        false => std::io::stdout().write_all(&text),
                    };
                }
            };
            let thread = std::thread::Builder::new().name(format!("output {rank}"));
            output.extend(thread.spawn(each).ok());
        };
        pass_on(child.stdout.take().map(|out| Box::new(out) as _), false);
        pass_on(child.stderr.take().map(|out| Box::new(out) as _), true);
        Self {
            child,
            ended: None,
            output,
        }
    }

    /// How it ended, if this is the first look since.
    fn look(&mut self) -> Option<ExitStatus> {
        if self.ended.is_some() {
            return None;
        }
        self.ended = self.child.try_wait().ok().flatten();
        self.ended
    }

    /// Asks it to end.
    fn terminate(&mut self) {
        if self.look().is_some() || self.ended.is_some() {
            return;
        }
        #[cfg(unix)]
        if let Some(process) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        #[cfg(not(unix))]
        self.kill();
    }

    fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
        }
    }
}
