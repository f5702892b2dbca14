//! The calls that are checked.

use flow_attention_cube::problem::Problem;
use flow_attention_mask::{Extent, Mask};
use flow_cube::wgmma::OperandType;

/// One call to check.
pub struct Case {
    pub problem: Problem,
    pub mask: Option<Mask>,
    /// Rows before heads in memory.
    pub strided: bool,
    pub scale: f32,
    /// Keys grow from row to row, so that scores leave the range of those before. Probabilities are nearly all 0 and 1 then,
    /// and gradients, which are differences of what is nearly the same, are not judged.
    pub rising: bool,
}

impl Case {
    /// Its sizes, type and mask, for a person.
    pub fn name(&self) -> String {
        let problem = &self.problem;
        format!(
            "B{} H{}/{} {}x{}+{} D{} {:?}{} {}",
            problem.batch,
            problem.heads,
            problem.kv_heads,
            problem.queries,
            problem.keys[0],
            problem.keys[1],
            problem.head_dim,
            problem.operand_type,
            match (self.strided, self.rising) {
                (true, _) => " strided".into(),
                (_, true) => format!(" rising x{:.2}", self.scale),
                _ => String::new(),
            },
            self.mask.as_ref().map_or("full".into(), |m| format!("{m:?}")
                .chars()
                .take(40)
                .collect::<String>()),
        )
    }
}

pub fn problem(
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: [usize; 2],
    head_dim: usize,
) -> Problem {
    Problem {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        head_dim,
        operand_type: OperandType::Bf16,
    }
}

fn plain(problem: Problem) -> Case {
    Case {
        problem,
        mask: None,
        strided: false,
        scale: 1.0 / (problem.head_dim as f32).sqrt(),
        rising: false,
    }
}

/// The cases of one head dimension.
pub fn cases(d: usize) -> Vec<Case> {
    let mut all = sizes(d);
    all.extend(large_scores(d));
    all.extend(masks(d));
    all
}

/// Sizes of all sorts, strides and f16, without a mask.
fn sizes(d: usize) -> Vec<Case> {
    let mut out = Vec::new();
    for (b, h, kv, q, k) in [
        (1, 1, 1, 64, [64, 0]),
        (1, 1, 1, 1, [1, 0]),
        (2, 2, 2, 13, [13, 0]),
        (1, 4, 2, 333, [357, 0]),
        (1, 2, 1, 77, [1357, 0]),
        (1, 2, 2, 1357, [77, 0]),
        (1, 2, 2, 333, [333, 77]),
        (2, 4, 1, 200, [13, 250]),
        // Long rows have tiles of their own.
        (1, 1, 1, 130, [4097, 0]),
        (1, 2, 1, 4097, [130, 0]),
        // Few keys of many queries: sums from splits.
        (1, 2, 2, 8300, [512, 0]),
        (2, 4, 2, 4200, [77, 0]),
    ] {
        out.push(plain(problem(b, h, kv, q, k, d)));
    }
    out.push(Case {
        strided: true,
        ..plain(problem(2, 3, 3, 333, [77, 130], d))
    });
    let half = problem(1, 2, 2, 333, [357, 0], d);
    out.push(plain(Problem {
        operand_type: OperandType::F16,
        ..half
    }));
    out
}

/// Scores that are large, and some that are far above those before.
fn large_scores(d: usize) -> Vec<Case> {
    let mut out = vec![Case {
        scale: 3.0,
        ..plain(problem(1, 1, 1, 130, [257, 0], d))
    }];
    // weights far above those of the tiles before, and so far that a row is done again
    for operand_type in [OperandType::Bf16, OperandType::F16] {
        for times in [1.0, 2.0, 8.0] {
            let problem = Problem {
                operand_type,
                ..problem(1, 2, 1, 200, [900, 0], d)
            };
            let scale = times / (d as f32).sqrt();
            for mask in [
                None,
                Some(Mask::Window {
                    before: 700,
                    after: 150,
                }),
            ] {
                out.push(Case {
                    scale,
                    mask,
                    rising: true,
                    ..plain(problem)
                });
            }
        }
    }
    out
}

/// Masks of every sort.
fn masks(d: usize) -> Vec<Case> {
    let mut out = Vec::new();
    let with = |problem: Problem, mask: Mask| Case {
        mask: Some(mask),
        ..plain(problem)
    };
    let ok = "a valid mask";
    out.push(with(problem(1, 2, 1, 333, [333, 0], d), Mask::Causal));
    out.push(with(problem(1, 1, 1, 77, [513, 0], d), Mask::Causal));
    // more queries than keys: the first rows see nothing
    out.push(with(problem(1, 1, 1, 513, [77, 0], d), Mask::Causal));
    out.push(with(
        problem(1, 2, 2, 600, [600, 0], d),
        Mask::Window {
            before: 100,
            after: 30,
        },
    ));
    out.push(with(
        problem(3, 2, 2, 150, [333, 0], d),
        Mask::key_padding(vec![333, 1, 200]).expect(ok),
    ));
    out.push(with(
        problem(1, 2, 2, 400, [400, 0], d),
        Mask::packed(vec![0, 13, 90, 290, 400], vec![0, 13, 90, 290, 400]).expect(ok),
    ));
    let ids: Vec<u32> = (0..300).map(|i| (i * i / 700) as u32 % 5).collect();
    out.push(with(
        problem(2, 2, 2, 300, [300, 0], d),
        Mask::documents(vec![ids.clone()], vec![ids]).expect(ok),
    ));
    let blocks: Vec<bool> = (0..36).map(|i| i % 3 != 1).collect();
    out.push(with(
        problem(1, 2, 2, 333, [333, 0], d),
        Mask::block_sparse(64, 64, blocks).expect(ok),
    ));
    let grid = Extent {
        frames: 5,
        height: 8,
        width: 12,
    };
    out.push(with(
        problem(1, 2, 2, 480, [480, 0], d),
        Mask::video(
            grid,
            Extent {
                frames: 1,
                height: 2,
                width: 3,
            },
        )
        .expect(ok),
    ));
    out.push(with(
        problem(2, 2, 2, 200, [150, 77], d),
        Mask::key_padding(vec![227, 160]).expect(ok),
    ));
    out
}
