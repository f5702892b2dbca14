//! A PTX interpreter: runs one thread, or one warp, of a compiled kernel on the host, without a GPU.
//!
//! PTX with integers, f64 and f32, by the definitions of the PTX ISA (9.7.1 to 9.7.9). What is not approximate gives the same bits on
//! the GPU; `ex2`, `lg2` and `rcp` are rounded correctly here, and nearly there. Threads that speak to one another: see
//! [`Kernel::run_warp`].

use crate::emulator::{CannotExecute, list, split};
mod arithmetic;
mod warp;

use arithmetic::computed;
use std::collections::HashMap;

/// A kernel's parameters, in order.
#[derive(Clone, Debug)]
pub enum Parameter {
    /// Where a buffer begins.
    Address(u64),
    /// A structure of words.
    Words(Vec<u32>),
}

/// Which thread: of a grid and blocks in one dimension.
#[derive(Clone, Copy, Debug)]
pub struct ThreadIndex {
    /// `%ctaid.x`.
    pub block: u32,
    /// `%tid.x`.
    pub thread: u32,
}

/// Global memory, words of 32 bits by address. What was not written cannot be read.
pub type Memory = HashMap<u64, u32>;

/// A line of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// Register, and whether it must be set.
    only_if: Option<(String, bool)>,
    pub name: String,
    pub operands: Vec<String>,
    pub text: String,
}

/// A kernel's instructions.
#[derive(Clone, Debug)]
pub struct Kernel {
    parameters: Vec<String>,
    /// What shared memory is called; it begins at 0.
    shared: Option<String>,
    pub(crate) instructions: Vec<Instruction>,
    labels: HashMap<String, usize>,
}

impl Kernel {
    /// The one kernel of a PTX module. `None` if there is none.
    pub fn read(ptx: &str) -> Option<Self> {
        let (module, kernel) = ptx.split_once(".entry")?;
        let (head, body) = kernel.split_once('{')?;
        let parameters = head.split(".param").skip(1).filter_map(|parameter| {
            let name = parameter.split([',', ')', '[']).next()?;
            Some(name.split_whitespace().last()?.to_owned())
        });
        let mut of = Self {
            parameters: parameters.collect(),
            shared: module.lines().find_map(|line| {
                let name = line.split_once(".shared")?.1.split(['[', ';']).next()?;
                Some(name.split_whitespace().last()?.to_owned())
            }),
            instructions: Vec::new(),
            labels: HashMap::new(),
        };
        for line in body.lines() {
            let line = line.split("//").next().unwrap_or_default().trim();
            if let Some(label) = line.strip_suffix(':') {
                of.labels.insert(label.into(), of.instructions.len());
                continue;
            }
            // A block in braces within a line declares registers of its own, which the next such block may declare again. Nothing
            // outside of it reads them.
            let line = match line.starts_with("{ ") {
                true => line.trim_start_matches("{ ").trim_end_matches('}'),
                false => line,
            };
            for text in line.split(';').map(str::trim) {
                if !matches!(text, "" | "{" | "}") && !text.starts_with('.') {
                    of.instructions.push(Instruction::read(text));
                }
            }
        }
        Some(of)
    }

    /// Runs the thread at `index`; what it stores goes to `memory`.
    ///
    /// # Errors
    /// [`CannotExecute`] for what is not known here, and what reads a register or memory that was not written.
    pub fn run(
        &self,
        parameters: &[Parameter],
        index: ThreadIndex,
        memory: &mut Memory,
    ) -> Result<(), CannotExecute> {
        let mut thread = Thread::new(self, parameters, index);
        let mut memory = Memories {
            global: memory,
            shared: &mut Memory::new(),
        };
        let mut next = 0;
        while let Some(instruction) = self.instructions.get(next) {
            next = thread.run(instruction, next, &mut memory)?;
        }
        Ok(())
    }
}

impl Instruction {
    fn read(text: &str) -> Self {
        let (only_if, rest) = match text.strip_prefix('@') {
            Some(guarded) => {
                let (register, rest) = guarded.split_once(char::is_whitespace).unwrap_or((guarded, ""));
                let name = register.trim_start_matches('!');
                (Some((name.to_owned(), name == register)), rest.trim())
            }
            None => (None, text),
        };
        let (name, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        Self {
            only_if,
            name: name.into(),
            operands: split(operands).into_iter().map(str::to_owned).collect(),
            text: text.into(),
        }
    }
}

/// What a thread sees.
pub(crate) struct Memories<'m> {
    pub global: &'m mut Memory,
    pub shared: &'m mut Memory,
}

/// Where a thread goes on.
enum Then {
    Next,
    To(usize),
    Return,
}

pub(crate) struct Thread<'a> {
    kernel: &'a Kernel,
    parameters: &'a [Parameter],
    index: ThreadIndex,
    pub registers: HashMap<&'a str, u64>,
}

impl<'a> Thread<'a> {
    pub fn new(kernel: &'a Kernel, parameters: &'a [Parameter], index: ThreadIndex) -> Self {
        Self {
            kernel,
            parameters,
            index,
            registers: HashMap::new(),
        }
    }

    /// Executes the instruction at `at`; where the thread goes on, behind the last one if it is over.
    pub fn run(
        &mut self,
        instruction: &'a Instruction,
        at: usize,
        memory: &mut Memories<'_>,
    ) -> Result<usize, CannotExecute> {
        match self.step(instruction, memory) {
            Ok(Then::Next) => Ok(at + 1),
            Ok(Then::To(next)) => Ok(next),
            Ok(Then::Return) => Ok(usize::MAX),
            Err(why) => Err(CannotExecute {
                instruction: instruction.text.clone(),
                why,
            }),
        }
    }

    /// Whether the thread executes the instruction at all.
    pub fn takes(&self, instruction: &Instruction) -> Result<bool, String> {
        match &instruction.only_if {
            Some((register, wanted)) => Ok((self.value(register)? != 0) == *wanted),
            None => Ok(true),
        }
    }

    fn step(&mut self, instruction: &'a Instruction, memory: &mut Memories<'_>) -> Result<Then, String> {
        if !self.takes(instruction)? {
            return Ok(Then::Next);
        }
        let operands: Vec<&'a str> = instruction.operands.iter().map(String::as_str).collect();
        match (&*instruction.name, &operands[..]) {
            ("ret", _) => return Ok(Then::Return),
            ("bra" | "bra.uni", [label]) => {
                let at = self.kernel.labels.get(*label);
                return at.map(|at| Then::To(*at)).ok_or_else(|| "no such label".into());
            }
            (
                name @ ("ld.global.nc.u32"
                | "ld.global.u32"
                | "ld.global.nc.f32"
                | "ld.global.nc.v2.u32"
                | "ld.global.nc.v4.u32"
                | "ld.shared.b32"),
                [to, from],
            ) => {
                let at = self.address(from)?;
                let memory = match name.contains("shared") {
                    true => &*memory.shared,
                    false => &*memory.global,
                };
                for (number, register) in list(to).into_iter().enumerate() {
                    let word = memory.get(&(at + 4 * number as u64));
                    let word = word.ok_or("memory that was not written")?;
                    self.registers.insert(register, u64::from(*word));
                }
            }
            ("st.shared.b32", [to, from]) => {
                let at = self.address(to)?;
                memory.shared.insert(at, self.value(from)? as u32);
            }
            ("st.global.f32" | "st.global.u32" | "st.global.v2.f32" | "st.global.v4.f32", [to, from]) => {
                let at = self.address(to)?;
                for (number, register) in list(from).into_iter().enumerate() {
                    memory
                        .global
                        .insert(at + 4 * number as u64, self.value(register)? as u32);
                }
            }
            (name @ ("mov.b64" | "mov.b32"), [to, from]) if to.starts_with('{') => {
                let [low, high] = list(to)[..] else {
                    return Err("two halves".into());
                };
                let value = self.value(from)?;
                let bits = if name == "mov.b64" { 32 } else { 16 };
                self.registers.insert(low, value & ((1 << bits) - 1));
                self.registers.insert(high, value >> bits);
            }
            ("mov.b64", [to, from]) if from.starts_with('{') => {
                let [low, high] = list(from)[..] else {
                    return Err("two halves".into());
                };
                let value = self.value(low)? & 0xFFFF_FFFF | self.value(high)? << 32;
                self.registers.insert(to, value);
            }
            (load @ ("ld.param.u32" | "ld.param.f32" | "ld.param.u64"), [to, from]) => {
                let value = self.parameter(from, load.ends_with("u64"))?;
                self.registers.insert(to, value);
            }
            (name, [to, from @ ..]) => {
                let from: Vec<u64> = from
                    .iter()
                    .map(|name| self.value(name))
                    .collect::<Result<_, _>>()?;
                let value = computed(name, &from).ok_or("not known here")?;
                self.registers.insert(to, value);
            }
            (_, []) => return Err("not known here".into()),
        }
        Ok(Then::Next)
    }

    /// A register, a constant, or where a parameter or shared memory is.
    pub fn value(&self, name: &str) -> Result<u64, String> {
        if let Some(value) = self.registers.get(name) {
            return Ok(*value);
        }
        if let Some(number) = self.kernel.parameters.iter().position(|known| known == name) {
            return Ok((number as u64) << PARAMETER);
        }
        let known = match name {
            _ if self.kernel.shared.as_deref() == Some(name) => Some(0),
            "%tid.x" => Some(u64::from(self.index.thread)),
            "%ctaid.x" => Some(u64::from(self.index.block)),
            "%ctaid.y" | "%ctaid.z" => Some(0),
            // Only multiplied by an index in another dimension.
            "%nctaid.x" | "%nctaid.y" | "%nctaid.z" => Some(1),
            _ => None,
        };
        let bits = |name: &str| u64::from_str_radix(name, 16).ok();
        let constant = || match (name.strip_prefix("0d"), name.strip_prefix("0f")) {
            (Some(digits), _) | (_, Some(digits)) => bits(digits),
            _ => name.parse::<i64>().ok().map(|value| value as u64),
        };
        known
            .or_else(constant)
            .ok_or_else(|| format!("{name} was not written"))
    }

    /// `[register+offset]`, `[parameter+offset]`.
    fn address(&self, operand: &str) -> Result<u64, String> {
        let operand = operand.trim_start_matches('[').trim_end_matches(']');
        let (base, offset) = operand.split_once('+').unwrap_or((operand, "0"));
        let offset: u64 = offset.parse().map_err(|_| "no offset")?;
        Ok(self.value(base)? + offset)
    }

    fn parameter(&self, operand: &str, is_wide: bool) -> Result<u64, String> {
        let at = self.address(operand)?;
        match (self.parameters.get((at >> PARAMETER) as usize), is_wide) {
            (Some(Parameter::Address(address)), true) => Ok(*address),
            (Some(Parameter::Words(words)), false) => {
                let word = words.get((at & ((1 << PARAMETER) - 1)) as usize / 4);
                word.map(|word| u64::from(*word))
                    .ok_or_else(|| "beyond its parameter".into())
            }
            _ => Err("no such parameter of this width".into()),
        }
    }
}

/// Bits of an offset within a parameter.
const PARAMETER: u32 = 32;
