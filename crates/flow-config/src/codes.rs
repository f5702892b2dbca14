//! The stable codes of diagnostics, each with its rule, its rationale and an example.

use std::fmt;

/// What is behind the code of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Explanation {
    /// The code.
    pub code: &'static str,
    /// What is found.
    pub rule: &'static str,
    /// Why that is so.
    pub why: &'static str,
    /// A config, or a part of one, in which it is found; or an override or a command.
    pub wrong: &'static str,
    /// The same, mended.
    pub right: &'static str,
}

impl fmt::Display for Explanation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            code,
            rule,
            why,
            wrong,
            right,
        } = self;
        writeln!(formatter, "{code}\n    {rule}\n    {why}")?;
        for (title, text) in [("for example", wrong), ("instead", right)] {
            writeln!(formatter, "  {title}:")?;
            for line in text.lines() {
                writeln!(formatter, "{}", format!("    {line}").trim_end())?;
            }
        }
        Ok(())
    }
}

macro_rules! codes {
    ($($(#[doc = $rule:literal])+ $name:ident = $code:literal, $why:literal, $wrong:literal, $right:literal;)+) => {
        $($(#[doc = $rule])+ pub const $name: &str = $code;)+

        /// Every code of this crate, in the order of the source.
        pub const ALL: &[Explanation] = &[$(Explanation {
            code: $code,
            rule: concat!($($rule),+).trim_ascii(),
            why: $why,
            wrong: $wrong,
            right: $right,
        }),+];
    };
}

codes! {
    /// The file cannot be read.
    UNREADABLE = "unreadable",
        "Nothing can be said of a config that cannot be opened, or whose bytes are not UTF-8, which TOML is written in.",
        "flow-train check no-such-file.toml",
        "flow-train check configs/digits-grpo.toml";
    /// The text is not TOML.
    SYNTAX = "syntax",
        "The parser goes on behind a syntax error, so that what else is wrong is said too; what stands beside the error is not judged.",
        "[run]\nname = digits",
        "[run]\nname = \"digits\"";
    /// An override is not of the form `a.b=value`, or names an entry of a list that does not exist.
    BAD_OVERRIDE = "bad-override",
        "An override that meant nothing would leave the run with other settings than those asked for.",
        "--set run.steps",
        "--set run.steps=20";
    /// `config_version` is not the one that this build reads.
    CONFIG_VERSION = "config-version",
        "Keys mean different things in different versions. An old file is not guessed at; `flow-train migrate` brings it up to date.",
        "config_version = 0",
        "config_version = 1";
    /// A key that its section does not have.
    UNKNOWN_KEY = "unknown-key",
        "A misspelt key that is passed over leaves its default in force, and the run is not the one that was meant.",
        "[optimizer]\nlearning_rte = 1e-4",
        "[optimizer]\nlearning_rate = 1e-4";
    /// A key that people know from elsewhere or from earlier versions, and that is something else here, or nothing.
    REMOVED_KEY = "removed-key",
        "Such a key gets what to write instead, with the value filled in where it means something, and not only the nearest name.",
        "[model]\nattn_backend = \"reference\"",
        "[[acceleration.shared]]\nname = \"attention_backend\"\nparams = { backend = \"reference\" }";
    /// A key that must be there is not.
    MISSING_KEY = "missing-key",
        "Where no default would be right for most, there is none.",
        "[[rewards]]\nweight = 1.0",
        "[[rewards]]\nkind = \"jpeg-compressibility\"\nweight = 1.0";
    /// A value of another type than the key takes.
    WRONG_TYPE = "wrong-type",
        "Values are not converted: `\"10\"` is a text, and 1.5 is no number of steps.",
        "[run]\nsteps = \"10\"",
        "[run]\nsteps = 10";
    /// A number outside the range of its key, or not a multiple of what it must be a multiple of.
    OUT_OF_RANGE = "out-of-range",
        "Ranges exclude what cannot work or is surely a slip; `flow-train explain KEY` shows each.",
        "[run]\nsteps = 0",
        "[run]\nsteps = 1";
    /// A text that is none of the allowed ones.
    NOT_ALLOWED = "not-allowed",
        "What is chosen by name must be one of the names there are; they are listed with the nearest of them.",
        "[device]\ndtype = \"fp8\"",
        "[device]\ndtype = \"bf16\"";
    /// A text or a list that is too short or too long.
    WRONG_LENGTH = "wrong-length",
        "A list of two numbers has a meaning for each of the two, and an empty name names nothing.",
        "[algorithm]\nkind = \"grpo\"\nclip_range = [1e-4]",
        "[algorithm]\nkind = \"grpo\"\nclip_range = [-1e-4, 1e-4]";
    /// A list that has an entry twice.
    REPEATED_ENTRY = "repeated-entry",
        "In these lists an entry is a choice, and choosing it twice is a slip.",
        "[scheduler.window]\nkind = \"list\"\nsteps = [1, 1]",
        "[scheduler.window]\nkind = \"list\"\nsteps = [1, 2]";
    /// `run.name` is the name of a directory that every file system takes: not `.`, `-` or `~` first, no control character and none of
    /// / \ : * ? " < > | in it, at most 200 bytes.
    RULE_RUN_NAME = "rule::run-name",
        "A run writes below `run.dir` and nowhere else.",
        "[run]\nname = \"a/b\"",
        "[run]\nname = \"b\"\ndir = \"runs/a\"";
    /// A path begins with `~`, which is a shell's word for the home folder and a plain character of a name to everybody else.
    RULE_HOME = "rule::home",
        "Taken as it stands, `~/runs` is a folder called `~` in the working directory, and the run is not where it is looked for.",
        "[run]\ndir = \"~/runs\"",
        "[run]\ndir = \"/home/me/runs\"";
    /// `device.index` is for machines with several GPUs; there is one CPU device.
    RULE_DEVICE_INDEX = "rule::device-index",
        "An index that nothing reads would look as if it had chosen something.",
        "[device]\nkind = \"cpu\"\nindex = 1",
        "[device]\nkind = \"cpu\"";
    /// The dimensions of a model have to divide each other in certain ways.
    RULE_MODEL_SHAPE = "rule::model-shape",
        "A latent is cut into whole patches, and the residual stream into whole heads.",
        "[model.dit]\nheads = 5",
        "[model.dit]\nheads = 4";
    /// The table of the architecture that is not in use has values.
    RULE_OTHER_ARCHITECTURE = "rule::other-architecture",
        "They would be passed over, and the model built with other dimensions than those in the file.",
        "[model]\narchitecture = \"dit\"\n[model.mmdit]\nnum_layers = 3",
        "[model]\narchitecture = \"dit\"\n[model.dit]\nlayers = 3";
    /// Images of the data set are not of the size, or have not as many channels, as the model's.
    RULE_IMAGE_SHAPE = "rule::image-shape",
        "Without a diffusers folder (`model.path`) or `model.autoencoder` there is no autoencoder between them: a latent is an image.",
        "[model.dit]\nheight = 16",
        "[model.dit]\nheight = 8";
    /// The model cannot take the data set's prompts.
    RULE_CONDITIONING = "rule::conditioning",
        "Prompts are tokens of the data set's vocabulary; a model with fewer tokens has no embedding for some.",
        "[model.dit]\nconditioning = { kind = \"tokens\", vocabulary = 5, max_tokens = 2 }",
        "[model.dit]\nconditioning = { kind = \"tokens\", vocabulary = 15, max_tokens = 2 }";
    /// A reward that cannot score the data set's images.
    RULE_REWARD_DATA = "rule::reward-data",
        "A classifier of digits says something of any image, and nothing that means anything of most.",
        "[[rewards]]\nkind = \"shapes-rules\"",
        "[[rewards]]\nkind = \"digit-classifier\"\nweights = \"built-in\"";
    /// The picture of an evaluation would be larger than pictures may be.
    RULE_GRID = "rule::grid",
        "It is drawn at the first evaluation, where a run would end that could not draw it.",
        "[evaluation]\nimages_per_prompt = 64\n[evaluation.grid]\ncolumns = 64\nscale = 64",
        "[evaluation]\nimages_per_prompt = 64\n[evaluation.grid]\ncolumns = 64\nscale = 4";
    /// Two rewards of one list have the same name, so that their metrics would be mixed, or one has the name of another metric.
    RULE_REWARD_NAME = "rule::reward-name",
        "A reward's name is the name of its metric, `reward/NAME`, beside which stand `reward/std`, `reward/group_std` and `reward/zero_std_groups`.",
        "[[rewards]]\nkind = \"jpeg-compressibility\"\n[[rewards]]\nkind = \"jpeg-compressibility\"\nquality = 50",
        "[[rewards]]\nkind = \"jpeg-compressibility\"\n[[rewards]]\nkind = \"jpeg-compressibility\"\nname = \"coarse\"\nquality = 50";
    /// Training needs a reward whose weight is not 0.
    RULE_NO_REWARD = "rule::no-reward",
        "Without one every advantage is 0, and nothing is learnt.",
        "[model]\nweights = \"w.safetensors\"",
        "[model]\nweights = \"w.safetensors\"\n[[rewards]]\nkind = \"jpeg-compressibility\"";
    /// Training needs weights to start from.
    RULE_NO_WEIGHTS = "rule::no-weights",
        "Images of a random model are noise, whose rewards differ by chance only.",
        "[[rewards]]\nkind = \"jpeg-compressibility\"",
        "[model]\nweights = \"w.safetensors\"\n[[rewards]]\nkind = \"jpeg-compressibility\"";
    /// A window names steps that the path does not have, or more of them than there are.
    RULE_WINDOW = "rule::window",
        "Steps of the window are random and trained; the last step ends at sigma 0 and has no noise under some dynamics.",
        "[scheduler]\nsteps = 4\nwindow = { kind = \"list\", steps = [4] }",
        "[scheduler]\nsteps = 4\nwindow = { kind = \"list\", steps = [2] }";
    /// A list of noise levels needs one value per step, some dynamics bound them, and a step of the window needs one above 0.
    RULE_NOISE_LEVEL = "rule::noise-level",
        "Coefficients-preserving sampling at level 1 makes all of the remaining noise fresh, more there is not; and a random step without noise is none.",
        "[scheduler]\nsteps = 4\nnoise_level = [0.7, 0.7]",
        "[scheduler]\nsteps = 4\nnoise_level = 0.7";
    /// A coupled algorithm needs log-probabilities, which deterministic steps do not have.
    RULE_NO_LOG_PROBABILITY = "rule::no-log-probability",
        "Its loss is a function of the ratio of two probabilities of a step. An ODE step is certain: there is no ratio, and no gradient.",
        "[algorithm]\nkind = \"grpo\"\n[scheduler]\ndynamics = \"ode\"",
        "[algorithm]\nkind = \"nft\"\n[scheduler]\ndynamics = \"ode\"";
    /// The numbers of tokens of a dynamic shift must rise.
    RULE_SHIFT = "rule::shift",
        "The shift is a straight line through two points; two at one place define none.",
        "[scheduler.shift]\nkind = \"dynamic\"\nbase_tokens = 4096\nmax_tokens = 256",
        "[scheduler.shift]\nkind = \"dynamic\"\nbase_tokens = 256\nmax_tokens = 4096";
    /// `prompts_per_step * group_size` must be a multiple of `micro_batch`.
    RULE_BATCH_GEOMETRY = "rule::batch-geometry",
        "Every call of the model then has the same shape: log-probabilities must not depend on it, and no image may be left out.",
        "[sampling]\nprompts_per_step = 3\ngroup_size = 4\nmicro_batch = 5",
        "[sampling]\nprompts_per_step = 3\ngroup_size = 4\nmicro_batch = 6";
    /// A group of one image has an advantage of 0, whatever its reward is.
    RULE_GROUP_SIZE = "rule::group-size",
        "An advantage is a reward less the mean of its group.",
        "[sampling]\ngroup_size = 1",
        "[sampling]\ngroup_size = 16";
    /// `exploration.candidates` must be more than `sampling.group_size` and make whole micro-batches, and candidates must differ.
    RULE_EXPLORATION = "rule::exploration",
        "Exploration keeps `sampling.group_size` of the candidates: where there are no more, or all are the same, there is nothing to choose.",
        "[sampling]\ngroup_size = 16\n[exploration]\ncandidates = 16",
        "[sampling]\ngroup_size = 16\n[exploration]\ncandidates = 48";
    /// An algorithm that learns from the data set makes no rollout, so that accelerators of rollouts have nothing to do.
    RULE_NO_ROLLOUT = "rule::no-rollout",
        "Its images are those of the records. Evaluations are sampled without the accelerators of `acceleration.rollout`, too.",
        "[algorithm]\nkind = \"sft\"\n[sampling]\ngroup_size = 1\nmicro_batch = 8\n[[acceleration.rollout]]\nname = \"exact_reuse\"",
        "[algorithm]\nkind = \"sft\"\n[sampling]\ngroup_size = 1\nmicro_batch = 8";
    /// Members of a group that start from the same latent need a random step to differ.
    RULE_INITIAL_NOISE = "rule::initial-noise",
        "Without noise on the way all images of a group are the same, and so are their rewards: every advantage is 0.",
        "[algorithm]\nkind = \"nft\"\n[scheduler]\ndynamics = \"ode\"\n[sampling]\ninitial_noise = \"per_group\"",
        "[algorithm]\nkind = \"nft\"\n[scheduler]\ndynamics = \"flow-sde\"\n[sampling]\ninitial_noise = \"per_group\"";
    /// Members of a group can part at chosen steps if they are random there, are as many as the branches need and, unless each group has a
    /// step of its own, start together.
    RULE_BRANCHING = "rule::branching",
        "An advantage at a step compares images that had everything in common up to it, or that learn from the same step. Those of one call of the model take the same steps.",
        "[sampling]\ngroup_size = 16\ninitial_noise = \"per_group\"\nbranching = { kind = \"one-step\" }\n[scheduler]\nwindow = { kind = \"contiguous\", size = 3 }",
        "[sampling]\ngroup_size = 24\nmicro_batch = 8\ninitial_noise = \"per_group\"\nbranching = { kind = \"one-step\" }\n[scheduler]\nwindow = { kind = \"contiguous\", size = 3 }";
    /// A rollout may be an update behind only where the loss divides by the log-probabilities that it recorded, and nothing waits for rewards
    /// before it is sampled.
    RULE_STALENESS = "rule::staleness",
        "The ratio to what was recorded corrects for the other weights; a loss that reads none would learn from them as if they were its own.",
        "[algorithm]\nkind = \"nft\"\n[sampling]\nstaleness = 1",
        "[algorithm]\nkind = \"grpo\"\n[sampling]\nstaleness = 1";
    /// The number of micro-batches must be a multiple of `optimizer.gradient_accumulation`.
    RULE_ACCUMULATION = "rule::accumulation",
        "Otherwise the last optimizer step of a rollout would see fewer images than the others.",
        "[sampling]\nprompts_per_step = 4\ngroup_size = 4\nmicro_batch = 4\n[optimizer]\ngradient_accumulation = 3",
        "[sampling]\nprompts_per_step = 4\ngroup_size = 4\nmicro_batch = 4\n[optimizer]\ngradient_accumulation = 2";
    /// The clip range must contain 0.
    RULE_CLIP_RANGE = "rule::clip-range",
        "The ratio is clipped to [1 + lo, 1 + hi], and before the first update it is 1.",
        "[algorithm]\nkind = \"grpo\"\nclip_range = [1e-4, 2e-4]",
        "[algorithm]\nkind = \"grpo\"\nclip_range = [-1e-4, 1e-4]";
    /// A coefficient that the precision in which it is used cannot tell from 0, from 1 or from infinity.
    RULE_PRECISION = "rule::precision",
        "Training computes in f32: a rate that is 0 there trains nothing, and a range around 1 that is 1 clips everything.",
        "[optimizer]\nlearning_rate = 1e-42",
        "[optimizer]\nlearning_rate = 1e-4";
    /// Adapters to begin from, in a run that has none.
    RULE_ADAPTER = "rule::adapter",
        "They would not be read, and the run would not be the one that the config describes.",
        "[model]\nadapter = \"my-lora\"\nfinetune = \"full\"",
        "[model]\nadapter = \"my-lora\"\nfinetune = \"lora\"";
    /// The pull towards a reference needs one that can be had.
    RULE_REFERENCE = "rule::reference",
        "`lora-off` is the model without its adapters, which a fully trained model does not have.",
        "[algorithm]\nkind = \"grpo\"\nkl = { kind = \"velocity\", beta = 0.01, reference = \"lora-off\" }",
        "[algorithm]\nkind = \"grpo\"\nkl = { kind = \"velocity\", beta = 0.01, reference = \"snapshot\" }";
    /// A KL term without a factor, or a factor without a KL term.
    RULE_KL = "rule::kl",
        "One of the two would do nothing.",
        "[algorithm]\nkind = \"grpo\"\nkl = { kind = \"none\", beta = 0.01 }",
        "[algorithm]\nkind = \"grpo\"\nkl = { kind = \"velocity\", beta = 0.01, reference = \"snapshot\" }";
    /// The part of the path on which the loss is taken is empty, or has fewer times than are asked for.
    RULE_TRAIN_TIMESTEPS = "rule::train-timesteps",
        "Times are drawn without replacement from those of the schedule.",
        "[algorithm]\nkind = \"nft\"\ntrain_timesteps = { range = [0.9, 0.1] }",
        "[algorithm]\nkind = \"nft\"\ntrain_timesteps = { range = [0.0, 0.9] }";
    /// A distillation needs teachers, each with a name and a file of its own, and steps of the rollout at which it is compared with them. Steps
    /// that are taken once more, with a fake score beside the student, are deterministic.
    RULE_DISTILLATION = "rule::distillation",
        "Without a teacher there is nothing to learn from, and what is compared has to be of one kind at all steps.",
        "[algorithm]\nkind = \"diffusion-opd\"",
        "[algorithm]\nkind = \"diffusion-opd\"\nteachers = [{ name = \"sketch\", adapter = \"sketch.safetensors\" }]";
    /// The algorithm asks for a reward by its name that is not there, or that counts as what it is not.
    RULE_REWARD_ROLE = "rule::reward-role",
        "What says how unlike the others an image is, or whether its reward is to be doubted, is one of `[[rewards]]`; where that is all it says, its weight is 0.",
        "[algorithm]\nkind = \"gardo\"\ndiversity = \"none\"\njudges = [\"aesthetic\"]\n[[rewards]]\nkind = \"jpeg-compressibility\"",
        "[algorithm]\nkind = \"gardo\"\ndiversity = \"none\"\njudges = [\"target-colour\"]\n[[rewards]]\nkind = \"jpeg-compressibility\"\n[[rewards]]\nkind = \"target-colour\"\nrgb = [1, 1, 1]\nweight = 0";
    /// The average of the weights is asked for but not kept.
    RULE_EMA = "rule::ema",
        "Evaluation would have nothing to measure.",
        "[evaluation]\nweights = \"ema\"",
        "[ema]\nenabled = true\n[evaluation]\nweights = \"ema\"";
    /// A warm-up that is longer than what it warms up.
    RULE_WARMUP = "rule::warmup",
        "The learning rate would never be reached.",
        "[pretrain]\nsteps = 10\nwarmup = 20",
        "[pretrain]\nsteps = 10\nwarmup = 2";
    /// A learning rate that is 0 before the run's last iteration.
    RULE_SCHEDULE_END = "rule::schedule-end",
        "The schedule counts optimizer steps, of which an iteration may have several. From its end on nothing is learned any more.",
        "[run]\nsteps = 100\n[optimizer]\nschedule = { kind = \"cosine\", steps = 50 }",
        "[run]\nsteps = 100\n[optimizer]\nschedule = { kind = \"cosine\", steps = 100 }";
    /// Values that nothing reads, given the others.
    RULE_UNUSED = "rule::unused",
        "Somebody wrote them and expects an effect.",
        "[ema]\nenabled = false\nupdate_every = 7",
        "[ema]\nenabled = true\nupdate_every = 7";
}

/// The explanation of a code.
pub fn explain_code(code: &str) -> Option<&'static Explanation> {
    ALL.iter().find(|known| known.code == code)
}
