//! Flags of the API: names of the model, what fields mean where a request is silent, the chat template, thinking. They
//! become an [`Api`] and a few [`Bounds`].

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches as _, ValueEnum};
use engine_io::plain;
use engine_io::text::{TemplateLimits, ToolStyle};
use serde_json::{Map, Value};

use crate::bench::options::within;
use crate::serve::api::{self, Api, Efforts, HostedTools, SystemFold, ToolResults};
use crate::serve::fields::Fields;
use crate::serve::info::SamplingDefaults;
use crate::serve::json::parse_object;
use crate::serve::{Bounds, limits, params};

/// Stop strings that can be allowed: as many as `/v1/messages` takes in any case.
const STOP_STRINGS_MAX: usize = limits::STOP_SEQUENCES;
/// Steps that a template can be allowed.
const FUEL_MAX: usize = 1 << 30;
/// Milliseconds that compiling a form can be allowed.
const COMPILE_MS_MAX: usize = 600_000;
/// Highest temperature that can be allowed.
const TEMPERATURE_MOST: f32 = 100.0;

/// Whether requests may name any model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ModelMatch {
    /// Whatever they name is taken for the model that is here.
    Any,
    /// Other names than those of /v1/models are answered with 404.
    Strict,
}

/// Spellings of the ways to write calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ToolStyleFlag {
    /// <tool_call> <function=NAME> <parameter=KEY>.
    Xml,
    /// <tool_call> {"name": .., "arguments": ..}.
    Hermes,
    /// {"name": .., "parameters": ..}.
    Llama3,
    /// <TOOLCALL>[..].
    Nemotron2,
}

impl ToolStyleFlag {
    fn style(self) -> ToolStyle {
        match self {
            Self::Xml => ToolStyle::Xml,
            Self::Hermes => ToolStyle::Hermes,
            Self::Llama3 => ToolStyle::Llama3,
            Self::Nemotron2 => ToolStyle::Nemotron2,
        }
    }
}

/// Spellings of the places of thinking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ReasoningFlag {
    /// In the content.
    None,
    /// In a field of its own.
    Deepseek,
    /// In both.
    DeepseekLegacy,
    /// As deepseek.
    Auto,
}

/// Names of the field that holds thinking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ReasoningField {
    /// DeepSeek's and llama-server's.
    #[value(name = "reasoning_content")]
    ReasoningContent,
    /// vLLM's.
    Reasoning,
}

/// The flags.
#[derive(Clone, PartialEq, Debug, Args)]
pub struct ApiFlags {
    /// Another name of the model, listed by /v1/models; may be repeated, or several with commas between.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = model_name)]
    pub alias: Vec<String>,
    /// What requests may call the model: anything, or with `strict` only what /v1/models lists.
    #[arg(long, value_enum, default_value_t = ModelMatch::Any)]
    pub model_match: ModelMatch,
    /// Refuse requests with fields that are not known, instead of naming these in a header.
    #[arg(long)]
    pub strict_params: bool,
    /// Most stop strings of a request; /v1/messages takes 64 in any case.
    #[arg(long, value_name = "N", default_value_t = limits::STOP_STRINGS, value_parser = within(1, STOP_STRINGS_MAX))]
    pub max_stop_strings: usize,
    /// Of /v1/responses and /v1/messages: leave out tools that run at a provider, or refuse requests with such.
    #[arg(long, value_enum, default_value_t = HostedTools::Drop)]
    pub hosted_tools: HostedTools,
    /// Continue the last message where it is the assistant's, without being asked to.
    #[arg(long)]
    pub prefill_assistant: bool,
    /// Sampling where a request is silent, before what the model's file says: a JSON object of the request's fields, such
    /// as {"temperature": 0.7, "top_p": 0.9}.
    #[arg(long, value_name = "JSON", value_parser = json)]
    pub default_sampling: Option<Map<String, Value>>,
    /// Highest temperature that a request may ask for.
    #[arg(long, value_name = "X", default_value_t = api::TEMPERATURE_MAX, value_parser = temperature_max)]
    pub temperature_max: f32,
    /// Chat template to use instead of the model's: its text.
    #[arg(long, value_name = "TEXT")]
    pub chat_template: Option<String>,
    /// A file that holds such a template.
    #[arg(long, value_name = "FILE", conflicts_with = "chat_template")]
    pub chat_template_file: Option<PathBuf>,
    /// Variables of the chat template, unless a request gives them, as a JSON object.
    #[arg(long, value_name = "JSON", value_parser = json)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Most steps of rendering one prompt; a short conversation may take less.
    #[arg(long, value_name = "N", default_value_t = TemplateLimits::default().fuel as usize, value_parser = within(1, FUEL_MAX))]
    pub template_fuel: usize,
    /// A system message in the middle, where the template takes none there: make it the user's, add it to the first one,
    /// or refuse the request.
    #[arg(long, value_enum, default_value_t = SystemFold::User)]
    pub system_fold: SystemFold,
    /// A call of a past turn that has no result, or one behind another message: refuse the request, or take an empty result
    /// for it, and the other message behind the results.
    #[arg(long, value_enum, default_value_t = ToolResults::Strict)]
    pub tool_results: ToolResults,
    /// How the model writes calls of tools [default: as its template shows]
    #[arg(long, value_enum)]
    pub tool_style: Option<ToolStyleFlag>,
    /// Where thinking goes unless a request says: into the content, a field of its own, or both.
    #[arg(long, value_enum, default_value_t = ReasoningFlag::Deepseek)]
    pub reasoning_format: ReasoningFlag,
    /// Field of chat answers that holds thinking.
    #[arg(long, value_enum, default_value_t = ReasoningField::ReasoningContent)]
    pub reasoning_field: ReasoningField,
    /// Tokens of thinking for each effort, where the template does not read the word; one that is not named has no limit.
    #[arg(long, value_name = "EFFORT=TOKENS,..", default_value = "minimal=512,low=2048,medium=8192", value_parser = Efforts::parse)]
    pub reasoning_effort_map: Efforts,
    /// Milliseconds of its own time that a thread may take to compile the schemas or the grammar of one request.
    #[arg(long, value_name = "MS", default_value_t = limits::COMPILE_TIME.as_millis() as usize, value_parser = within(1, COMPILE_MS_MAX))]
    pub constraint_compile_ms: usize,
}

impl Default for ApiFlags {
    fn default() -> Self {
        let nothing = Self::augment_args(Command::new("")).get_matches_from([""]);
        Self::from_arg_matches(&nothing).expect("every flag has a default")
    }
}

impl ApiFlags {
    /// Values that contradict each other, or that no request could be read with.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.alias.len() > limits::ALIASES {
            return Err(format!("--alias gives {} names; at most {}", self.alias.len(), limits::ALIASES));
        }
        if let Some(twice) = self.alias.iter().enumerate().find(|(i, name)| self.alias[..*i].contains(name)) {
            return Err(format!("--alias {} stands twice", twice.1));
        }
        if let Some(map) = &self.default_sampling {
            Fields::body(map).only(&params::SAMPLING).map_err(|e| format!("--default-sampling: {}", e.message))?;
            self.sampling(SamplingDefaults::default())?;
        }
        if let Some(map) = &self.chat_template_kwargs {
            api::check_kwargs(map).map_err(|e| format!("--chat-template-kwargs: {}", e.message))?;
        }
        match &self.chat_template {
            Some(text) if text.is_empty() => {
                Err("--chat-template is empty; leave it out to use the model's own".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Sampling where a request is silent; `file` is what the model's file says. A temperature of a file above the highest
    /// one comes down to it.
    ///
    /// # Errors
    /// What of `--default-sampling` is out of range.
    pub fn sampling(&self, file: SamplingDefaults) -> Result<SamplingDefaults, String> {
        let file = SamplingDefaults { temperature: file.temperature.min(self.temperature_max), ..file };
        let Some(map) = &self.default_sampling else { return Ok(file) };
        let read = params::sampling(&Fields::body(map), &file, self.temperature_max);
        read.map_err(|error| format!("--default-sampling: {}", error.message))
    }

    /// The chat template that is to be used instead of the model's, and where it stands.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn template(&self) -> engine_io::Result<Option<(String, String)>> {
        match (&self.chat_template, &self.chat_template_file) {
            (Some(text), _) => Ok(Some(("--chat-template".to_owned(), text.clone()))),
            (None, Some(path)) => {
                Ok(Some((path.display().to_string(), plain::text(path, limits::TEMPLATE_FILE_BYTES)?)))
            }
            (None, None) => Ok(None),
        }
    }

    /// How calls are written, whatever the template shows.
    pub fn style(&self) -> Option<ToolStyle> {
        self.tool_style.map(ToolStyleFlag::style)
    }

    /// `base` with the bounds that these flags give.
    pub fn bounds(&self, base: Bounds) -> Bounds {
        Bounds {
            stop_strings: self.max_stop_strings,
            template_fuel: self.template_fuel as u64,
            compile_time: Duration::from_millis(self.constraint_compile_ms as u64),
            ..base
        }
    }

    /// The settings; what other flags say of them is left at its default.
    pub fn api(&self) -> Api {
        let word = match self.reasoning_format {
            ReasoningFlag::None => "none",
            ReasoningFlag::Deepseek => "deepseek",
            ReasoningFlag::DeepseekLegacy => "deepseek-legacy",
            ReasoningFlag::Auto => "auto",
        };
        Api {
            aliases: self.alias.clone(),
            strict_model: self.model_match == ModelMatch::Strict,
            strict_params: self.strict_params,
            hosted_tools: self.hosted_tools,
            prefill_assistant: self.prefill_assistant,
            temperature_max: self.temperature_max,
            kwargs: self.chat_template_kwargs.iter().flat_map(api::given_kwargs).collect(),
            system_fold: self.system_fold,
            tool_results: self.tool_results,
            reasoning: api::reasoning_format(word).expect("a word of requests"),
            reasoning_field: match self.reasoning_field {
                ReasoningField::ReasoningContent => "reasoning_content",
                ReasoningField::Reasoning => "reasoning",
            },
            efforts: self.reasoning_effort_map,
            ..Api::default()
        }
    }
}

fn model_name(text: &str) -> Result<String, String> {
    let visible = text.chars().all(|c| !c.is_control() && !c.is_whitespace());
    let whole = !text.starts_with('/') && !text.ends_with('/');
    match (1..=limits::ALIAS_BYTES).contains(&text.len()) && visible && whole {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected a name of 1 to {} bytes without blanks, and no slash at its ends",
            limits::ALIAS_BYTES
        )),
    }
}

fn json(text: &str) -> Result<Map<String, Value>, String> {
    parse_object(text.as_bytes()).map_err(|error| error.message)
}

fn temperature_max(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if (0.0..=TEMPERATURE_MOST).contains(&x) => Ok(x),
        _ => Err(format!("expected a number from 0 to {TEMPERATURE_MOST}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::flags::LowArgs;

    /// Flags of a line of words that hold no blanks.
    fn flags(line: &str) -> Result<ApiFlags, String> {
        let words = std::iter::once("engine-serve").chain(line.split_whitespace()).map(Into::into);
        Ok(LowArgs::parse_line(words).map_err(|e| e.to_string())?.resolve()?.low.api)
    }

    #[test]
    fn without_flags_everything_is_as_it_is_without_them() {
        let flags = flags("").unwrap();
        assert_eq!((flags.api(), &flags), (Api::default(), &ApiFlags::default()));
        assert_eq!(flags.bounds(Bounds::default()), Bounds::default());
        assert_eq!((flags.style(), flags.template().unwrap()), (None, None));
        assert_eq!(flags.sampling(SamplingDefaults::default()), Ok(SamplingDefaults::default()));
    }

    #[test]
    fn each_flag_sets_its_own() {
        let flags = flags(
            "--alias a,org/b --alias c --model-match strict --strict-params --max-stop-strings 9 --hosted-tools reject \
             --prefill-assistant --temperature-max 5 --chat-template-kwargs {\"enable_thinking\":false} --template-fuel 99 \
             --system-fold first --tool-results lenient --tool-style llama3 --reasoning-format none --reasoning-field reasoning \
             --reasoning-effort-map low=7 --constraint-compile-ms 3 --default-sampling {\"temperature\":3,\"top_k\":-1}",
        );
        let flags = flags.unwrap();
        let expected = Api {
            aliases: ["a", "org/b", "c"].map(str::to_owned).to_vec(),
            strict_model: true,
            strict_params: true,
            hosted_tools: HostedTools::Reject,
            prefill_assistant: true,
            temperature_max: 5.0,
            kwargs: Map::from_iter([("enable_thinking".to_owned(), json!(false))]),
            system_fold: SystemFold::First,
            tool_results: ToolResults::Lenient,
            reasoning: api::reasoning_format("none").unwrap(),
            reasoning_field: "reasoning",
            efforts: Efforts::parse("low=7").unwrap(),
            ..Api::default()
        };
        assert_eq!((flags.api(), flags.style()), (expected, Some(ToolStyle::Llama3)));
        let compile_time = Duration::from_millis(3);
        let bounds = Bounds { stop_strings: 9, template_fuel: 99, compile_time, ..Bounds::default() };
        assert_eq!(flags.bounds(Bounds::default()), bounds);
        let file = SamplingDefaults { top_k: 40, top_p: 0.5, ..SamplingDefaults::default() };
        let expected = SamplingDefaults { temperature: 3.0, top_k: 0, ..file };
        assert_eq!(flags.sampling(file), Ok(expected));
    }

    #[test]
    fn values_that_cannot_be_met_are_refused() {
        for (line, told) in [
            ("--alias=", "--alias"),
            ("--alias a,,b", "--alias"),
            ("--alias a,a", "--alias a stands twice"),
            ("--alias /a", "no slash"),
            ("--alias a\u{7}b", "without blanks"),
            ("--model-match some", "--model-match"),
            ("--max-stop-strings 0", "--max-stop-strings"),
            ("--max-stop-strings 65", "--max-stop-strings"),
            ("--hosted-tools run", "--hosted-tools"),
            ("--default-sampling [1]", "expected object"),
            ("--default-sampling {\"heat\":1}", "--default-sampling: heat is not known"),
            ("--default-sampling {\"temperature\":2.5}", "--default-sampling: temperature: 2.5 is outside"),
            ("--default-sampling {\"top_p\":0}", "--default-sampling: top_p"),
            ("--default-sampling {\"top_k\":\"5\"}", "--default-sampling: top_k"),
            ("--default-sampling {\"top_k\":1,\"top_k\":2}", "duplicate"),
            ("--temperature-max 1 --default-sampling {\"temperature\":1.5}", "--default-sampling: temperature"),
            ("--temperature-max nan", "--temperature-max"),
            ("--temperature-max=-1", "--temperature-max"),
            ("--chat-template=", "--chat-template is empty"),
            ("--chat-template a --chat-template-file b", "cannot be used with"),
            ("--chat-template-kwargs {\"tools\":[]}", "--chat-template-kwargs: chat_template_kwargs.tools"),
            ("--chat-template-kwargs {\"enable_thinking\":1}", "expected boolean"),
            ("--chat-template-kwargs {", "--chat-template-kwargs"),
            ("--template-fuel 0", "--template-fuel"),
            ("--system-fold last", "--system-fold"),
            ("--tool-style yaml", "--tool-style"),
            ("--reasoning-format deep", "--reasoning-format"),
            ("--reasoning-field thinking", "--reasoning-field"),
            ("--reasoning-effort-map low=x", "low: expected tokens"),
            ("--constraint-compile-ms 0", "--constraint-compile-ms"),
        ] {
            let error = flags(line).expect_err(line);
            assert!(error.contains(told), "{line}: {error}");
        }
        let many: Vec<String> = (0..=limits::ALIASES).map(|i| format!("m{i}")).collect();
        assert!(flags(&format!("--alias {}", many.join(","))).unwrap_err().contains("at most"));
        let many: Vec<String> = (0..=limits::TEMPLATE_KWARGS).map(|i| format!("\"k{i}\":1")).collect();
        assert!(flags(&format!("--chat-template-kwargs {{{}}}", many.join(","))).unwrap_err().contains("more than"));
    }

    #[test]
    fn a_file_is_no_hotter_than_the_highest_temperature() {
        let flags = flags("--temperature-max 0.5").unwrap();
        assert_eq!(flags.sampling(SamplingDefaults::default()).unwrap().temperature, 0.5);
    }
}
