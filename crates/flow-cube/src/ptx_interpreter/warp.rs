//! A warp of a kernel on the host: 32 threads that speak to one another by `shfl.sync` and `vote.sync` (PTX ISA 9.7.9.6, 9.7.13.4).
//!
//! Each thread runs until it speaks; when all have come to the same instruction, each gets what the others said. Threads may go
//! different ways in between. What they do to memory they do one after the other.

use crate::emulator::{CannotExecute, LANES};
use crate::ptx_interpreter::{Instruction, Kernel, Memories, Memory, Parameter, Thread, ThreadIndex};

impl Kernel {
    /// Runs the first warp of block `block`; what it stores goes to `memory`.
    ///
    /// # Errors
    /// [`CannotExecute`] for what [`run`](Self::run) cannot, and where threads of the warp do not all come to the same instruction by
    /// which they speak to one another.
    pub fn run_warp(
        &self,
        parameters: &[Parameter],
        block: u32,
        memory: &mut Memory,
    ) -> Result<(), CannotExecute> {
        let mut memory = Memories {
            global: memory,
            shared: &mut Memory::new(),
        };
        let mut lanes: Vec<(Thread<'_>, usize)> = (0..LANES as u32)
            .map(|thread| (Thread::new(self, parameters, ThreadIndex { block, thread }), 0))
            .collect();
        loop {
            for (thread, next) in &mut lanes {
                while let Some(instruction) = self.instructions.get(*next)
                    && !(speaks(instruction) && thread.takes(instruction).unwrap_or(false))
                {
                    *next = thread.run(instruction, *next, &mut memory)?;
                }
            }
            let at = lanes[0].1;
            let Some(instruction) = self.instructions.get(at) else {
                return match lanes
                    .iter()
                    .all(|(_, next)| self.instructions.get(*next).is_none())
                {
                    true => Ok(()),
                    false => Err(apart(None)),
                };
            };
            if lanes.iter().any(|(_, next)| *next != at) {
                return Err(apart(Some(instruction)));
            }
            exchange(&mut lanes, instruction).map_err(|why| CannotExecute {
                instruction: instruction.text.clone(),
                why,
            })?;
            for (_, next) in &mut lanes {
                *next += 1;
            }
        }
    }
}

fn speaks(instruction: &Instruction) -> bool {
    ["shfl.sync.", "vote.sync."]
        .iter()
        .any(|start| instruction.name.starts_with(start))
}

fn apart(instruction: Option<&Instruction>) -> CannotExecute {
    CannotExecute {
        instruction: instruction.map_or_else(|| "ret".into(), |instruction| instruction.text.clone()),
        why: "threads of the warp are at different places".into(),
    }
}

/// Gives each thread what the others say.
fn exchange<'a>(lanes: &mut [(Thread<'a>, usize)], instruction: &'a Instruction) -> Result<(), String> {
    let operands: Vec<&'a str> = instruction.operands.iter().map(String::as_str).collect();
    let said = |of: &str| -> Result<Vec<u64>, String> {
        let (name, flip) = match of.strip_prefix('!') {
            Some(name) => (name, 1),
            None => (of, 0),
        };
        lanes
            .iter()
            .map(|(thread, _)| Ok(thread.value(name)? ^ flip))
            .collect()
    };
    match (&*instruction.name, &operands[..]) {
        ("shfl.sync.bfly.b32", [to, value, distance, _, _]) => {
            let (values, distances) = (said(value)?, said(distance)?);
            let to = to.split('|').next().unwrap_or(to);
            for (lane, (thread, _)) in lanes.iter_mut().enumerate() {
                let from = lane ^ distances[lane] as usize;
                let heard = values.get(from).ok_or("no such lane")?;
                thread.registers.insert(to, *heard);
            }
        }
        ("vote.sync.any.pred", [to, value, _]) => {
            let any = said(value)?.iter().any(|value| *value != 0);
            for (thread, _) in lanes {
                thread.registers.insert(to, any.into());
            }
        }
        _ => return Err("not known here".into()),
    }
    Ok(())
}
