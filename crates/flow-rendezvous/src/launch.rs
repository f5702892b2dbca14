//! What a launcher says of a process, by environment variables.

use crate::error::RendezvousError;
use crate::variables::Variables;
use std::net::IpAddr;

/// PyTorch's port for `MASTER_PORT`.
const DEFAULT_PORT: u16 = 29_500;

/// Who started the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, whose agent serves the store.
    Torchrun,
    /// Somebody who sets `RANK` and its companions: Kubernetes, a script.
    Plain,
    /// `srun`.
    Slurm,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH and its relatives.
    Mpich,
}

/// Where the run's store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlace {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Whether rank 0 serves it; otherwise somebody does already.
    pub own: bool,
}

/// What a launcher says of a process of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Who started it.
    pub launcher: Launcher,
    /// Its rank, from 0.
    pub rank: usize,
    /// Processes of the run, at least 2.
    pub ranks: usize,
    /// Its rank on its machine.
    pub local_rank: usize,
    /// Processes on its machine, where the launcher says so.
    pub local_ranks: Option<usize>,
    /// Restarts before.
    pub attempt: u64,
    /// The store.
    pub store: StorePlace,
}

/// The names under which a launcher says the same four things.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    ranks: &'static str,
    local_rank: &'static str,
    local_ranks: &'static str,
    attempt: &'static str,
    help: &'static str,
}

const PLAIN: Names = Names {
    launcher: Launcher::Plain,
    rank: "RANK",
    ranks: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_ranks: "LOCAL_WORLD_SIZE",
    attempt: "TORCHELASTIC_RESTART_COUNT",
    help: "The launcher must set RANK, WORLD_SIZE, LOCAL_RANK (0 where each process has a machine or pod of its own), MASTER_ADDR and \
           MASTER_PORT for each process; torchrun and `flow-train launch` do. For a run of one process unset them",
};

const OTHERS: [Names; 3] = [
    // In a batch script without srun there is a SLURM_PROCID, too, but no number of tasks of a step.
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        ranks: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_ranks: "SLURM_STEP_TASKS_PER_NODE",
        attempt: "SLURM_RESTART_COUNT",
        help: "srun sets SLURM_PROCID, SLURM_STEP_NUM_TASKS and SLURM_LOCALID; start the processes by it, or set RANK, WORLD_SIZE, \
               LOCAL_RANK, MASTER_ADDR and MASTER_PORT",
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_ranks: "OMPI_COMM_WORLD_LOCAL_SIZE",
        attempt: "OMPI_MCA_orte_num_restarts",
        help: "mpirun of Open MPI sets OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE and OMPI_COMM_WORLD_LOCAL_RANK; start the processes \
               by it, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT",
    },
    Names {
        launcher: Launcher::Mpich,
        rank: "PMI_RANK",
        ranks: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_ranks: "MPI_LOCALNRANKS",
        attempt: "",
        help: "mpiexec of MPICH sets PMI_RANK, PMI_SIZE and MPI_LOCALRANKID; start the processes by it, or set RANK, WORLD_SIZE, \
               LOCAL_RANK, MASTER_ADDR and MASTER_PORT",
    },
];

impl Launch {
    /// What the environment of this process says; none if it is a run of one process.
    ///
    /// # Errors
    /// A variable that is missing or wrong.
    pub fn from_environment() -> Result<Option<Self>, RendezvousError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// As [`from_environment`](Self::from_environment), of variables by name.
    ///
    /// # Errors
    /// A variable that is missing or wrong.
    pub fn from_variables(
        variables: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, RendezvousError> {
        let variables = Variables(variables);
        let is_set = |name: &str| variables.text(name).is_some();
        let names = if is_set(PLAIN.rank) || is_set(PLAIN.ranks) {
            &PLAIN
        } else {
            let both = |names: &&Names| is_set(names.rank) && is_set(names.ranks);
            match OTHERS.iter().find(both) {
                Some(names) => names,
                None => return Ok(None),
            }
        };
        Self::named(&variables, names)
    }

    fn named<F: Fn(&str) -> Option<String>>(
        variables: &Variables<F>,
        names: &Names,
    ) -> Result<Option<Self>, RendezvousError> {
        let found = match variables.text(names.rank) {
            Some(_) => names.rank,
            None => names.ranks,
        };
        let ranks = variables.expected(names.ranks, found, names.help)?;
        let rank = variables.expected(names.rank, found, names.help)?;
        if rank >= ranks {
            return Err(RendezvousError::Variable {
                variable: names.rank,
                value: rank.to_string(),
                problem: format!(
                    "ranks count from 0, so it must be less than {}={ranks}",
                    names.ranks
                ),
            });
        }
        if ranks == 1 {
            return Ok(None);
        }
        let local_rank = variables.expected(names.local_rank, found, names.help)?;
        // Slurm writes a list, `4(x2)`, which says nothing of this machine.
        let local_ranks = match names.launcher {
            Launcher::Slurm => None,
            _ => variables.number(names.local_ranks)?,
        };
        for (most, variable) in [(Some(ranks), names.ranks), (local_ranks, names.local_ranks)] {
            if let Some(most) = most.filter(|most| local_rank >= *most) {
                return Err(RendezvousError::Variable {
                    variable: names.local_rank,
                    value: local_rank.to_string(),
                    problem: format!("must be less than {variable}={most}"),
                });
            }
        }
        let is_agent = names.launcher == Launcher::Plain
            && variables.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True");
        let launcher = if is_agent {
            Launcher::Torchrun
        } else {
            names.launcher
        };
        let attempt = match names.attempt {
            "" => None,
            name => variables.number(name)?,
        };
        let store = place(variables, names, launcher, (ranks, local_ranks))?;
        Ok(Some(Self {
            launcher,
            rank,
            ranks,
            local_rank,
            local_ranks,
            attempt: attempt.unwrap_or(0) as u64,
            store,
        }))
    }
}

/// Where the store is or is to be.
fn place<F: Fn(&str) -> Option<String>>(
    variables: &Variables<F>,
    names: &Names,
    launcher: Launcher,
    (ranks, local_ranks): (usize, Option<usize>),
) -> Result<StorePlace, RendezvousError> {
    let missing = |missing: &'static str, help: String| RendezvousError::Missing {
        found: format!(
            "{}={}",
            names.ranks,
            variables.text(names.ranks).unwrap_or_default()
        ),
        missing,
        help,
    };
    let is_one_machine = local_ranks == Some(ranks);
    let port = match variables.text("MASTER_PORT") {
        Some(text) => match text.parse::<u16>() {
            Ok(port) if port > 0 => port,
            _ => {
                return Err(RendezvousError::Variable {
                    variable: "MASTER_PORT",
                    value: text,
                    problem: "must be a port, 1 to 65535".into(),
                });
            }
        },
        None if names.launcher == Launcher::Plain => {
            return Err(missing("MASTER_PORT", names.help.into()));
        }
        None => DEFAULT_PORT,
    };
    let first_node = || first_node(&variables.text("SLURM_STEP_NODELIST")?);
    let host = match variables.text("MASTER_ADDR") {
        Some(host) => host,
        None if launcher == Launcher::Slurm && first_node().is_some() => first_node().unwrap_or_default(),
        None if names.launcher != Launcher::Plain && is_one_machine => "127.0.0.1".into(),
        None if names.launcher == Launcher::Plain => {
            return Err(missing("MASTER_ADDR", names.help.into()));
        }
        None => {
            return Err(missing(
                "MASTER_ADDR",
                "The processes are on several machines: set MASTER_ADDR to the one of rank 0, for each of them (Open MPI: `mpirun -x \
                 MASTER_ADDR=HOST`; MPICH: `mpiexec -genv MASTER_ADDR HOST`)"
                    .into(),
            ));
        }
    };
    let is_loopback =
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if is_loopback && local_ranks.is_some_and(|local| local < ranks) {
        return Err(RendezvousError::Variable {
            variable: "MASTER_ADDR",
            value: host,
            problem: format!(
                "is each machine's own address, and only some of the {ranks} ranks are on this machine; set it to the name or address \
                 of the machine of rank 0"
            ),
        });
    }
    Ok(StorePlace {
        host,
        port,
        own: launcher != Launcher::Torchrun,
    })
}

/// The first of Slurm's list of nodes: `gpu07` of `gpu[07-09,12],login1`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let Some(inside) = rest.strip_prefix('[') else {
        return (!prefix.is_empty()).then(|| prefix.to_owned());
    };
    let number: String = inside.chars().take_while(char::is_ascii_digit).collect();
    let after = inside.split_once(']')?.1;
    let suffix: String = after.chars().take_while(|one| *one != ',').collect();
    (!number.is_empty()).then(|| format!("{prefix}{number}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_of_a_list_is_found_in_slurms_short_forms() {
        for (list, wanted) in [
            ("node1", Some("node1")),
            ("node1,node2", Some("node1")),
            ("gpu[07-09,12],login1", Some("gpu07")),
            ("rack[2,4]-a,b", Some("rack2-a")),
            ("", None),
            ("gpu[", None),
        ] {
            assert_eq!(first_node(list).as_deref(), wanted, "{list}");
        }
    }
}
