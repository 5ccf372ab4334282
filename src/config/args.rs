//! The flags of `prefixd serve`, built from the table of settings. Defaults are only shown here: the merge knows them.

use super::knobs::{Knob, TABLE};
use super::layers::Said;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::path::PathBuf;

/// What was given on the command line of `serve`.
#[derive(Clone, Debug, Default)]
pub struct ServeArgs {
    /// The TOML file.
    pub config: Option<PathBuf>,
    /// Check and print, don't serve.
    pub check: bool,
    /// Flags and environment.
    pub said: Said,
}

impl clap::Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        let command =
            command
                .arg(Arg::new("config").long("config").value_name("FILE").value_parser(value_parser!(PathBuf)).help(
                "Read settings from this TOML file; keys are the flags' names with underscores [env: PREFIXD_CONFIG=]",
            ));
        let command = command.arg(
            Arg::new("check")
                .long("check")
                .action(ArgAction::SetTrue)
                .help("Check the configuration, print it with where each value comes from, and exit"),
        );
        TABLE.iter().fold(command, |command, knob| command.arg(argument(knob)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        self.check = matches.get_flag("check");
        for knob in TABLE {
            if let Some(text) = matches.get_one::<String>(knob.key) {
                self.said.flags.insert(knob.key.into(), text.clone());
            }
        }
        Ok(())
    }
}

impl ServeArgs {
    /// Adds what the environment says. Variables that no setting is named after are not looked at: orchestrators
    /// make PREFIXD_… variables of their own for a service of that name.
    pub fn with_environment(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        self.config = self.config.or_else(|| variable("PREFIXD_CONFIG").map(PathBuf::from));
        for knob in TABLE {
            if let Some(text) = variable(&knob.variable()) {
                self.said.environment.insert(knob.key.into(), text);
            }
        }
        self
    }
}

fn argument(knob: &Knob) -> Arg {
    let default = if knob.default.is_empty() { String::new() } else { format!(" [default: {}]", knob.default) };
    let argument = Arg::new(knob.key).long(knob.flag()).help_heading(knob.group).help(format!(
        "{}{default} [env: {}=]",
        knob.help,
        knob.variable()
    ));
    if knob.switch {
        let values = PossibleValuesParser::new(["true", "false"]);
        return argument
            .value_name("BOOL")
            .num_args(0..=1)
            .default_missing_value("true")
            .value_parser(values)
            .hide_possible_values(true);
    }
    argument.value_name("VALUE").allow_hyphen_values(true)
}
