//! Compares how structures lie in memory here with how they lie there for C. A list names each field once; from it come
//! our numbers, and the program in C that prints those of the system's headers.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A number that both sides have.
pub(crate) struct Number {
    /// What C calls it.
    pub(crate) expression: String,
    pub(crate) ours: i128,
}

/// A structure of ours, and what it is in C.
pub(crate) struct Structure {
    pub(crate) theirs: &'static str,
    /// Where ours is only the end of theirs: the first field of that end.
    pub(crate) after: &'static [&'static str],
    pub(crate) bytes: usize,
    pub(crate) fields: Vec<Field>,
}

/// A field of it.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// What follows the name in the list.
    pub(crate) theirs: &'static [&'static str],
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// `Ours = "struct theirs" { fields }`: all fields of ours, which the compiler checks.
///
/// | a field | in C |
/// |---|---|
/// | `name` | has the same name |
/// | `name is "other"` | has this name |
/// | `name from "other"` | is several, and this is the first of them: only where it begins is compared |
/// | `name alone` | is not there |
///
/// `Ours = "struct theirs" after "field" { fields }` is the end of theirs, from that field on.
macro_rules! structures {
    ($($ours:ident = $theirs:literal $(after $first:literal)? {
        $($field:ident $($how:ident $($name:literal)?)?),* $(,)?
    })*) => {
        vec![$({
            const _: fn(&$ours) = |$ours { $($field: _),* }| ();
            Structure {
                theirs: $theirs,
                after: &[$($first)?],
                bytes: size_of::<$ours>(),
                fields: vec![$(Field {
                    name: stringify!($field),
                    theirs: &[$(stringify!($how) $(, $name)?)?],
                    offset: std::mem::offset_of!($ours, $field),
                    bytes: comparison::bytes_of(|it: &$ours| &it.$field),
                }),*],
            }
        }),*]
    };
}

/// `THEIRS = ours, …`: constants of C, and what has their value here.
macro_rules! numbers {
    ($($theirs:ident = $ours:expr),* $(,)?) => {
        vec![$(Number {
            expression: stringify!($theirs).to_owned(),
            ours: i128::from($ours),
        }),*]
    };
}

/// Bytes of a field.
pub(crate) fn bytes_of<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

impl Number {
    pub(crate) fn of_bytes(expression: String, bytes: usize) -> Self {
        let ours = bytes as i128;
        Self { expression, ours }
    }
}

impl Structure {
    /// Its size, and the places and sizes of its fields.
    pub(crate) fn numbers(&self) -> Vec<Number> {
        let theirs = self.theirs;
        let begin = match self.after {
            [first] => format!(" - offsetof({theirs}, {first})"),
            _ => String::new(),
        };
        let size = format!("sizeof({theirs}){begin}");
        let mut numbers = vec![Number::of_bytes(size, self.bytes)];
        for field in &self.fields {
            let (name, is_whole) = match field.theirs {
                [] => (field.name, true),
                ["is", name] => (*name, true),
                ["from", name] => (*name, false),
                ["alone"] => continue,
                other => panic!("{theirs}: the field {} {other:?}", field.name),
            };
            let offset = format!("offsetof({theirs}, {name}){begin}");
            numbers.push(Number::of_bytes(offset, field.offset));
            if is_whole {
                let size = format!("sizeof((({theirs} *)0)->{name})");
                numbers.push(Number::of_bytes(size, field.bytes));
            }
        }
        numbers
    }
}

/// A folder of its own for each program: tests run beside each other.
fn new_folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("weft-headers-{}-{count}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).expect("a folder for the program");
    folder
}

/// What a program in C prints for these numbers.
fn printed(header: &str, numbers: &[Number]) -> String {
    let mut source = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <{header}>\nint main(void) {{\n"
    );
    for Number { expression, .. } in numbers {
        source += &format!("    printf(\"%lld\\n\", (long long)({expression}));\n");
    }
    source += "}\n";
    let folder = new_folder();
    let [file, program] = ["numbers.c", "numbers"].map(|name| folder.join(name));
    fs::write(&file, source).expect("it is ours");
    let mut compiler = Command::new("cc");
    compiler.arg("-o").args([&program, &file]);
    let is_built = compiler.status().expect("a C compiler").success();
    assert!(
        is_built,
        "{header} is there, with all that {} names",
        file.display()
    );
    let output = Command::new(&program).output().expect("it starts");
    fs::remove_dir_all(&folder).expect("it is ours");
    String::from_utf8(output.stdout).expect("it prints numbers")
}

/// Each number is that of the system's header.
pub(crate) fn assert_same(header: &str, numbers: &[Number]) {
    let printed = printed(header, numbers);
    let theirs: Vec<i128> = printed
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(theirs.len(), numbers.len(), "{printed}");
    let differences: Vec<String> = numbers
        .iter()
        .zip(theirs)
        .filter(|(number, theirs)| number.ours != *theirs)
        .map(|(Number { expression, ours }, theirs)| {
            format!("{expression} is {theirs}, and here {ours}")
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
