//! What launchers set, and what is said of variables that are missing or wrong.

use flow_rendezvous::{Launch, Launcher, RendezvousError};

fn read(variables: &[(&str, &str)]) -> Result<Option<Launch>, RendezvousError> {
    let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
    Launch::from_variables(|name| find(name).map(|(_, value)| (*value).to_owned()))
}

fn launch(variables: &[(&str, &str)]) -> Launch {
    read(variables)
        .expect("the variables are right")
        .expect("several ranks")
}

const TORCHRUN: &[(&str, &str)] = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node7"),
    ("MASTER_PORT", "29511"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ("TORCHELASTIC_RESTART_COUNT", "2"),
];

#[test]
fn under_torchrun_every_rank_is_a_client_and_restarts_count() {
    let found = launch(TORCHRUN);
    assert_eq!(found.launcher, Launcher::Torchrun);
    assert_eq!((found.rank, found.ranks, found.local_rank), (3, 4, 1));
    assert_eq!((found.local_ranks, found.attempt), (Some(2), 2));
    assert!(!found.store.own, "the agent listens on MASTER_PORT already");
    assert_eq!((found.store.host.as_str(), found.store.port), ("node7", 29_511));
}

#[test]
fn every_launcher_says_the_same_in_its_own_words() {
    let slurm = launch(&[
        ("SLURM_PROCID", "5"),
        ("SLURM_STEP_NUM_TASKS", "8"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
        ("SLURM_STEP_NODELIST", "gpu[07-08]"),
    ]);
    assert_eq!(slurm.launcher, Launcher::Slurm);
    assert_eq!((slurm.rank, slurm.ranks, slurm.local_rank), (5, 8, 1));
    assert_eq!((slurm.store.host.as_str(), slurm.store.own), ("gpu07", true));
    let open_mpi = launch(&[
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ]);
    assert_eq!(
        (open_mpi.launcher, open_mpi.store.port),
        (Launcher::OpenMpi, 29_500)
    );
    assert_eq!(open_mpi.store.host, "127.0.0.1");
    let mpich = launch(&[
        ("PMI_RANK", "0"),
        ("PMI_SIZE", "3"),
        ("MPI_LOCALRANKID", "0"),
        ("MPI_LOCALNRANKS", "1"),
        ("MASTER_ADDR", "a"),
    ]);
    assert_eq!((mpich.launcher, mpich.local_ranks), (Launcher::Mpich, Some(1)));
}

#[test]
fn one_process_is_no_run_of_several() {
    let one = [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_RANK", "0"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "1"),
    ];
    // A batch script that starts the program without srun.
    let script = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "0"),
    ];
    for variables in [&[][..], &one, &script] {
        assert_eq!(read(variables).unwrap(), None, "{variables:?}");
    }
}

#[test]
fn what_is_missing_or_wrong_is_named_with_what_the_launcher_must_set() {
    let without = |name: &str| {
        let kept = TORCHRUN.iter().filter(|(known, _)| *known != name);
        kept.copied().collect::<Vec<_>>()
    };
    let with = |name: &'static str, value: &'static str| {
        let mut variables = without(name);
        variables.push((name, value));
        variables
    };
    let cases = [
        (
            without("WORLD_SIZE"),
            vec!["RANK=3 is set and WORLD_SIZE is not", "torchrun"],
        ),
        (
            without("RANK"),
            vec!["WORLD_SIZE=4 is set and RANK is not", "unset them"],
        ),
        (
            without("LOCAL_RANK"),
            vec!["LOCAL_RANK is not", "0 where each process has a machine"],
        ),
        (without("MASTER_ADDR"), vec!["MASTER_ADDR is not"]),
        (without("MASTER_PORT"), vec!["MASTER_PORT is not"]),
        (with("RANK", "4"), vec!["RANK=4", "less than WORLD_SIZE=4"]),
        (with("RANK", "first"), vec!["RANK=first", "whole number"]),
        (
            with("LOCAL_RANK", "2"),
            vec!["LOCAL_RANK=2", "less than LOCAL_WORLD_SIZE=2"],
        ),
        (
            with("MASTER_PORT", "70000"),
            vec!["MASTER_PORT=70000", "1 to 65535"],
        ),
        (
            with("MASTER_ADDR", "127.0.0.1"),
            vec!["MASTER_ADDR=127.0.0.1", "machine of rank 0"],
        ),
        (
            vec![
                ("OMPI_COMM_WORLD_RANK", "1"),
                ("OMPI_COMM_WORLD_SIZE", "4"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ],
            vec!["MASTER_ADDR is not", "mpirun -x"],
        ),
    ];
    for (variables, wanted) in cases {
        let text = read(&variables).expect_err("wrong").to_string();
        for part in wanted {
            assert!(text.contains(part), "{variables:?}: {text}");
        }
    }
}
