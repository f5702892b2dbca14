//! What a run takes of a device's memory, and what is said of it.

use super::*;

#[test]
fn the_estimate_is_the_documented_sum_and_is_refused_above_the_memory_only() {
    let text = "[sampling]\nprompts_per_step = 2\ngroup_size = 4\nmicro_batch = 4\nguidance_scale = 3.0\n[scheduler]\n\
                  steps = 5\n[ema]\nenabled = true";
    let parsed = config(text);
    let load = Load::of(&parsed, &CATALOG);
    assert_eq!(
        load,
        Load {
            rows: 8,
            images: 8,
            records: 4,
            states: 0,
            copies: 1,
            networks: 0,
            teachers: Teachers::default(),
            recomputed_every: None,
            kept: Kept::default(),
            recorded: false,
            stored: Stored {
                trained: 4,
                frozen: 4,
                copy: 4,
                gradient: 4,
                moment: 4,
                activation: 4,
            },
            text_tokens: WordsText::default().tokens,
            moment_shards: 1,
            lower_half_shards: 1,
            weight_shards: 1,
            shards_trained: false,
            one_unit: false,
            low_precision: LowPrecisionLoad::default(),
        }
    );
    let mut spec = spec();
    spec.latent.channels = 1;
    spec.latent.frames = 1;
    spec.latent.height = 3;
    spec.latent.width = 2;
    let estimate = MemoryEstimate::new(&layout(), &spec, 10, &load);
    // By hand, 4 bytes each: 10 weights, 2 · 10 gradients, 2 · 10 moments, 1 · 10 average; 8 images of 6 values with 4
    // steps of 3 and the end; 8 rows of 4 tokens · (3 + 2) and one sample's 2 + 2, and the gradients of the first layer's.
    let by_hand = [
        40.0,
        80.0,
        80.0,
        40.0,
        4.0 * 6.0 * 8.0 * 13.0,
        4.0 * 8.0 * (24.0 + 20.0),
    ];
    let [weights, gradients, moments, copies, trajectories, activations] = by_hand;
    let bytes: Vec<f64> = estimate
        .parts(Phase::Update)
        .into_iter()
        .map(|(_, bytes)| bytes)
        .collect();
    assert_eq!(
        bytes,
        [
            weights,
            gradients,
            moments,
            copies,
            0.0,
            trajectories,
            activations
        ]
    );
    assert_eq!(estimate.total(), by_hand.iter().sum::<f64>());
    let narrow = Load::of(&config("[optimizer]\nmoments = \"bf16\""), &CATALOG);
    let narrow = MemoryEstimate::new(&layout(), &spec, 10, &narrow);
    assert_eq!(narrow.moments, 40.0, "two moments of 10 values, 2 bytes each");
    // Shared out over four processes, if that was asked for, and nothing else is.
    let shared = config(&format!("{text}\n[distributed]\nshard = \"optimizer\""));
    let shared = MemoryEstimate::new(&layout(), &spec, 10, &load.on_ranks(&shared, 4));
    assert_eq!(shared.moments, moments / 4.0);
    assert_eq!(shared.total(), estimate.total() - moments * 0.75);
    let whole = MemoryEstimate::new(&layout(), &spec, 10, &load.on_ranks(&parsed, 4));
    assert_eq!(whole, estimate);
    // With the frozen weights of blocks, all 10 below adapters: a part of them, two whole blocks, and three rows of one on their way.
    let adapters = "[model]\nfinetune = \"lora\"\n[distributed]\nshard = \"weights\"";
    let in_parts = MemoryEstimate::new(&layout(), &spec, 0, &load.on_ranks(&config(adapters), 4));
    assert_eq!([in_parts.weights, in_parts.loading], [10.0, 10.0]);
    assert_eq!(in_parts.whole_blocks, 2.0 * 40.0 + 3.0 * 40.0);
    assert_eq!(in_parts.at(Phase::Loading), 10.0);
    let parts = in_parts.parts(Phase::Rollout);
    assert!(parts.contains(&("whole blocks", 200.0)), "{parts:?}");
    let alone = MemoryEstimate::new(&layout(), &spec, 0, &load.on_ranks(&config(adapters), 1));
    assert_eq!([alone.weights, alone.whole_blocks], [40.0, 0.0]);
    // All 10 trained: weights, moments and copies in parts.
    let full = config("[ema]\nenabled = true\n[distributed]\nshard = \"weights\"");
    let full = MemoryEstimate::new(&layout(), &spec, 10, &load.on_ranks(&full, 4));
    let found = [
        full.weights,
        full.trained_weights,
        full.loading,
        full.copies,
        full.moments,
    ];
    assert_eq!(found, [10.0, 10.0, 10.0, 10.0, 20.0]);
    assert_eq!(
        [full.gradients, full.sums, full.whole_blocks],
        [40.0, 40.0 + 3.0 * 40.0, 200.0]
    );
    // Eight micro-batches. Of an update of four each process has one, and of its sums its own part alone; 0 is an update of all eight.
    let sums = |accumulated: usize, ranks: usize| {
        let config = config(&format!(
            "[sampling]\nprompts_per_step = 4\ngroup_size = 4\nmicro_batch = 2\n[optimizer]\ngradient_accumulation = {accumulated}\n[distributed]\nshard = \"weights\""
        ));
        let load = Load { records: 1, ..load }.on_ranks(&config, ranks);
        MemoryEstimate::new(&layout(), &spec, 10, &load).sums
    };
    assert_eq!([sums(4, 4), sums(8, 4)], [10.0 + 120.0, 40.0 + 120.0]);
    assert_eq!([sums(0, 4), sums(0, 8)], [40.0 + 120.0, 5.0 + 120.0]);
    let on_a_gpu = "config_version = 1\n[device]\nkind = \"cuda\"\ndtype = \"bf16\"\n[ema]\nenabled = true\n[optimizer]\n";
    for (keys, trained, gradient) in [
        ("", 4.0, 4.0),
        ("weights = \"bf16\"\n", 2.0, 4.0),
        ("gradients = \"bf16\"\n", 4.0, 2.0),
    ] {
        let config = parse_str(&format!("{on_a_gpu}{keys}")).expect("right").config;
        let load = Load::of(&config, &CATALOG);
        // Of the 10 weights 7 are trained.
        let estimate = MemoryEstimate::new(&layout(), &spec, 7, &load);
        let found = [
            estimate.weights,
            estimate.gradients,
            estimate.sums,
            estimate.moments,
            estimate.copies,
        ];
        assert_eq!(
            found,
            [7.0 * trained + 6.0, 7.0 * gradient, 28.0, 56.0, 42.0],
            "{keys}"
        );
        // What is trained is read in f32, what is not as it stays.
        assert_eq!(estimate.loading, 7.0 * 4.0 + 3.0 * 2.0, "{keys}");
    }

    let with = |bytes: u64| Machine {
        memory_bytes: Some(bytes),
        ..machine()
    };
    let total = estimate.total() as u64;
    assert_eq!(ask(text, &with(total), &spec, &[]), []);
    // With fewer activations it might fit; without any it must.
    let found = ask(text, &with(total - 1), &spec, &[]);
    assert!(
        !errors(&found) && found[0].code == "memory::too-much",
        "{found:?}"
    );
    // Gradients are their own sum where a step has one, and steps that follow one another share what is between them.
    assert_eq!(
        estimate.certain(),
        40.0 + 40.0 + 80.0 + 40.0 + 4.0 * 6.0 * 8.0 * 9.0
    );
    let certain = estimate.certain() as u64;
    assert!(!errors(&ask(text, &with(certain), &spec, &[])));
    let refused = ask(text, &with(certain - 1), &spec, &[]);
    assert!(
        errors(&refused) && refused[0].code == "memory::too-much",
        "{refused:?}"
    );
    assert!(refused[0].message.contains("needs at least"), "{refused:?}");
    for (name, bytes) in estimate
        .parts(Phase::Update)
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0.0)
    {
        let part = format!("{name} {}", gib(bytes));
        assert!(found[0].message.contains(&part), "{part}: {}", found[0]);
    }
    assert!(
        found[0]
            .help
            .as_deref()
            .is_some_and(|help| help.starts_with("`sampling.micro_batch = 2` would fit"))
    );
    let unknown = Machine {
        memory_bytes: None,
        ..machine()
    };
    assert_eq!(
        ask(text, &unknown, &spec, &[]),
        [],
        "nothing is said of a memory that nobody knows"
    );
}

#[test]
fn blocks_that_are_computed_again_count_with_their_inputs_and_the_largest_one() {
    let load = |policy: &str| Load::of(&config(&format!("[checkpointing]\n{policy}")), &CATALOG);
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    for (block, inner) in [(0, 3), (1, 5), (2, 4)] {
        builder.param(&format!("blocks.{block}.up.weight"), [inner, 2], Init::Zeros);
        builder.param(&format!("blocks.{block}.down.weight"), [2, inner], Init::Zeros);
    }
    builder.param("proj_out.weight", [2, 2], Init::Zeros);
    let spec = ModelSpec {
        stacks: vec![("blocks".into(), 3)],
        ..spec()
    };
    let activations = |policy: &str| {
        let load = load(policy);
        MemoryEstimate::new(&layout, &spec, 0, &load).activations / (4.0 * load.rows as f64) - 4.0 * 7.0
    };
    // 4 tokens: the last layer, and per block twice (inner + 2); without the gradients of the widest layer, 5 + 2.
    let (last, blocks) = (4.0 * 4.0, [5.0, 7.0, 6.0].map(|row| 4.0 * 2.0 * row));
    let input = 4.0 * 2.0;
    assert_eq!(
        activations("policy = \"none\""),
        last + blocks.iter().sum::<f64>()
    );
    let again = last + 3.0 * input + blocks[1];
    for policy in ["full", "attn-only"] {
        assert_eq!(activations(&format!("policy = \"{policy}\"")), again, "{policy}");
    }
    // Of each block's two linear layers, which give 3, 5 or 4 values and 2, both keep their results, or the first, however large n is.
    for (n, results) in [(1, 18.0), (2, 12.0), (3, 12.0), (1000, 12.0)] {
        let policy = format!("policy = \"every-nth-linear\"\nn = {n}");
        assert_eq!(activations(&policy), again + 4.0 * results, "{policy}");
    }
    assert_eq!(
        activations("policy = \"block-skip\"\nevery = 2"),
        last + blocks[1] + 2.0 * input + blocks[2]
    );
}

#[test]
fn lower_halves_are_in_parts_where_processes_share_out_the_optimizer_and_nothing_follows_whole_weights() {
    let text = "config_version = 1\n[device]\nkind = \"cuda\"\ndtype = \"bf16\"\n[distributed]\nshard = \"optimizer\"\n";
    // Of the 10 weights 7 are trained; all four processes have the upper halves.
    let (shared, whole) = (7.0 * 2.0 + 7.0 * 2.0 / 4.0, 7.0 * 4.0);
    for (keys, trained) in [
        ("", shared),
        ("[sampling]\nstaleness = 1\n", shared),
        ("[ema]\nenabled = true\n", whole),
        ("[model]\nfinetune = \"lora\"\n", whole),
        ("[optimizer]\nweights = \"bf16\"\n", 7.0 * 2.0),
    ] {
        let config = parse_str(&format!("{text}{keys}")).expect("right").config;
        let load = Load::of(&config, &CATALOG);
        let estimate =
            |ranks: usize| MemoryEstimate::new(&layout(), &spec(), 7, &load.on_ranks(&config, ranks));
        let found = estimate(4);
        assert_eq!(found.trained_weights, trained, "{keys}");
        assert_eq!(found.weights, trained + 3.0 * 2.0, "{keys}");
        assert_eq!(found.moments, 7.0 * 8.0 / 4.0, "{keys}");
        let alone = 7.0 * load.stored.trained as f64;
        assert_eq!(estimate(1).trained_weights, alone, "{keys}");
    }
}

#[test]
fn blocks_of_two_streams_keep_both_inputs_and_what_attention_gives_where_the_policy_says_so() {
    let mut layout = ParamLayout::default();
    let mut builder = LayoutBuilder::new(&mut layout);
    for block in 0..3 {
        builder.param(&format!("blocks.{block}.up.weight"), [16, 8], Init::Zeros);
        builder
            .applied_to(Rows::Text)
            .param(&format!("blocks.{block}.text.weight"), [8, 8], Init::Zeros);
    }
    let queries: &[&'static [Rows]] = &[&[Rows::Tokens, Rows::Text], &[Rows::Tokens]];
    let found = queries.iter().map(|queries| {
        let spec = ModelSpec {
            stacks: vec![("blocks".into(), 3)],
            attentions: vec![AttentionShape {
                layers: 3,
                queries,
                keys: &[Rows::Tokens, Rows::Text],
                width: 8,
                heads: 2,
            }],
            ..spec()
        };
        ["full", "attn-only"].map(|policy| {
            let config = config(&format!("[checkpointing]\npolicy = \"{policy}\""));
            let load = Load {
                text_tokens: 7,
                ..Load::of(&config, &CATALOG)
            };
            let found = MemoryEstimate::new(&layout, &spec, 0, &load);
            let of_row = 4.0 * load.rows as f64;
            assert_eq!(found.calls / of_row, 4.0 * 7.0 * 16.0, "{policy}");
            assert_eq!(found.recorded_calls, 0.0);
            found.activations / of_row
        })
    });
    // 4 tokens and 7 of text: a block's layers, and the gradients of its widest, of which a call without gradients has four times as much.
    let (block, widest) = (4.0 * 24.0 + 7.0 * 16.0, 7.0 * 16.0);
    let (both, one) = (3.0 * 8.0 * 11.0, 3.0 * 8.0 * 4.0);
    // Of each query 8 channels and, of each of two heads, an f32.
    let kept = |queries: f64| 3.0 * queries * 10.0;
    let by_hand = [
        [block + widest + both, block + widest + both + kept(11.0)],
        [block + widest + one, block + widest + one + kept(4.0)],
    ];
    assert_eq!(found.collect::<Vec<_>>(), by_hand);
}

#[test]
fn what_passes_through_a_recorded_call_of_a_rollout_stays_during_updates() {
    let plain = config("");
    let recorded = config("[[acceleration.shared]]\nname = \"graph_capture\"");
    let [plain, recorded] = [plain, recorded].map(|config| {
        let load = Load::of(&config, &CATALOG);
        MemoryEstimate::new(&layout(), &spec(), 10, &load)
    });
    assert_eq!(
        [plain.recorded_calls, recorded.recorded_calls],
        [0.0, plain.calls]
    );
    assert!(plain.calls > 0.0);
    assert_eq!(recorded.at(Phase::Rollout), plain.at(Phase::Rollout));
    assert_eq!(recorded.at(Phase::Update), plain.at(Phase::Update) + plain.calls);
    assert_eq!(recorded.certain(), plain.certain());
}

#[test]
fn a_budget_below_the_weights_is_refused_whatever_the_machine_has() {
    let found = |peak_gib: f64| {
        let text = format!(
            "[checkpointing]\npolicy = \"budget\"\npeak_gib = {peak_gib}\n[sampling]\nprompts_per_step = 1\ngroup_size = \
             2\nmicro_batch = 1"
        );
        let mut layout = ParamLayout::default();
        LayoutBuilder::new(&mut layout).param("proj_out.weight", [1 << 9, 1 << 9], Init::Zeros);
        let config = config(&text);
        let (spec, machine) = (spec(), machine());
        validate(&Question {
            config: &config,
            catalog: &CATALOG,
            accelerators: &registry(),
            plan: None,
            model: Some(Capabilities {
                spec: &spec,
                layout: &layout,
                trained: 1 << 18,
            }),
            sigmas: &[],
            trainer: &TrainerKind::of(&config, &CATALOG),
            machine: &machine,
            companions: None,
            ranks: 1,
            training: true,
        })
    };
    // Weights, gradients and moments: 5 MiB.
    assert_eq!(found(5.0 / 1024.0), []);
    let refused = found(4.99 / 1024.0);
    assert_eq!(refused[0].code, "checkpointing::budget-too-small");
    assert_eq!(refused[0].path, "checkpointing.peak_gib");
}

/// A text encoder of 1000 values, one of 3000, and an autoencoder of 50.
fn folder() -> Companions {
    let model = |name: &str, values: usize| Companion {
        name: name.into(),
        class: format!("Class of {name}"),
        values,
        file_bytes: 2 * values,
        passing: 0,
    };
    Companions {
        encoders: vec![model("text_encoder", 1000), model("text_encoder_2", 3000)],
        autoencoder: Some(model("vae", 50)),
        rewards: Vec::new(),
        decoding_bytes: 600.0,
    }
}

#[test]
fn text_encoders_count_one_at_a_time_before_the_first_rollout() {
    let text = "[sampling]\nprompts_per_step = 1\ngroup_size = 2\nmicro_batch = 1";
    let load = Load::of(&config(text), &CATALOG);
    let mut spec = spec();
    spec.latent.channels = 1;
    spec.latent.frames = 1;
    spec.latent.height = 3;
    spec.latent.width = 2;
    let alone = MemoryEstimate::new(&layout(), &spec, 10, &load);
    let estimate = alone.with_companions(&folder(), load.stored);
    // Weights and moments, 4 bytes each, the autoencoder, and the larger encoder.
    let start = 40.0 + 80.0 + alone.copies + 200.0;
    assert_eq!(estimate.at(Phase::Encoding), start + 12_000.0);
    assert_eq!(
        estimate.at(Phase::Rollout),
        start + alone.trajectories + 600.0 + alone.calls
    );
    assert_eq!(estimate.at(Phase::Update), alone.total() + 200.0);
    assert_eq!(estimate.peak().0, Phase::Encoding);
    assert_eq!(estimate.total(), start + 12_000.0);

    let table = |available| {
        let layout = layout();
        let model = Trained {
            layout: &layout,
            spec: &spec,
            values: 10,
            load: &load,
        };
        MemoryTable::new(&config(text), model, Some(&folder()), available)
    };
    let found = table(Some(13_000));
    assert_eq!(found.peak(), (Phase::Encoding, start + 12_000.0));
    let row = |part: &str| found.rows.iter().find(|row| row.part == part).expect("a row");
    assert_eq!(row("text_encoder_2").bytes, 12_000.0);
    assert_eq!(row("text_encoder_2").when, [Phase::Encoding]);
    assert_eq!(
        row("text_encoder_2").what,
        "Class of text_encoder_2, 3000 values in f32"
    );
    assert_eq!(row("vae").when.len(), 3);

    // What passes through an encoder counts with its weights, and may make another one the largest.
    let mut passing = folder();
    passing.encoders[0].passing = 2500;
    let estimate_passing = alone.with_companions(&passing, load.stored);
    assert_eq!(estimate_passing.encoder, 4.0 * 1000.0 + 4.0 * 2500.0);

    // Prompts may be encoded already, so that this is a warning, with what helps.
    let config = config(text);
    let plan = Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()));
    let found = |bytes: u64| {
        let machine = Machine {
            memory_bytes: Some(bytes),
            ..machine()
        };
        validate(&Question {
            config: &config,
            catalog: &CATALOG,
            accelerators: &registry(),
            plan: Some(&plan),
            model: Some(Capabilities {
                spec: &spec,
                layout: &layout(),
                trained: 10,
            }),
            sigmas: &[],
            trainer: &TrainerKind::of(&config, &CATALOG),
            machine: &machine,
            companions: Some(&folder()),
            ranks: 1,
            training: true,
        })
    };
    assert_eq!(found(estimate.total() as u64), []);
    let warned = found(estimate.total() as u64 - 1);
    assert!(
        !errors(&warned) && warned[0].code == "memory::too-much",
        "{warned:?}"
    );
    let said = format!(
        "{} {}",
        warned[0].message,
        warned[0].help.as_deref().unwrap_or_default()
    );
    for part in [
        "while prompts are encoded",
        "the largest text encoder",
        "text.cache",
    ] {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    // Encoding elsewhere is enough where the rest of the run fits, and else not all that is to be done.
    let [rollout, update] = [Phase::Rollout, Phase::Update].map(|phase| estimate.at(phase));
    let help = |bytes: f64| {
        let found = found(bytes as u64);
        assert!(!errors(&found), "{found:?}");
        found[0].help.clone().unwrap_or_default()
    };
    assert!(help(rollout.max(update)).starts_with("encode the prompts on a device"));
    let later = match rollout > update {
        true => Phase::Rollout,
        false => Phase::Update,
    };
    let both = help(rollout.max(update) - 1.0);
    let beginning = format!(
        "it may need about {} {}, too: ",
        gib(estimate.at(later)),
        later.in_words()
    );
    assert!(
        both.starts_with(&beginning) && both.contains("text.cache"),
        "{both}"
    );
    assert!(errors(&found(estimate.certain() as u64 - 1)));
}

#[test]
fn networks_of_rewards_stay_in_memory_as_long_as_the_run_lasts() {
    let text = "[sampling]\nprompts_per_step = 1\ngroup_size = 2\nmicro_batch = 1";
    let load = Load::of(&config(text), &CATALOG);
    let alone = MemoryEstimate::new(&layout(), &spec(), 10, &load);
    let companions = Companions {
        rewards: vec![Companion {
            name: "reward clip-score".into(),
            class: "clip-score".into(),
            values: 500,
            file_bytes: 0,
            passing: 0,
        }],
        ..Companions::default()
    };
    let estimate = alone.with_companions(&companions, load.stored);
    for phase in [Phase::Rollout, Phase::Update] {
        assert_eq!(estimate.at(phase), alone.at(phase) + 2000.0);
    }
    assert_eq!(estimate.at(Phase::Loading), alone.at(Phase::Loading));
    let (layout, spec) = (layout(), spec());
    let model = Trained {
        layout: &layout,
        spec: &spec,
        values: 10,
        load: &load,
    };
    let table = MemoryTable::new(&config(text), model, Some(&companions), None);
    let row = table.rows.iter().find(|row| row.part == "reward clip-score");
    assert_eq!(row.map(|row| row.bytes), Some(2000.0));
}
