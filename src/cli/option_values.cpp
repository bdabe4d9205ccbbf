#include "cli/option_values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "core/checked_math.hpp"
#include "core/compare_names.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "layout/adapter_names.hpp"
#include "remote/remote_calls.hpp"

namespace glu_ckpt::cli {
namespace {

/// Too many for help.
const std::vector<ValueWord>& naming_words() {
  static const std::vector<ValueWord> kWords = [] {
    std::set<std::string> names;
    for (const NamingSummary& row : naming_summaries()) {
      names.insert(row.name);
      for (const std::string& type : row.model_types) names.insert("hf:" + type);
    }
    std::vector<ValueWord> words;
    words.reserve(names.size());
    for (const std::string& name : names) words.push_back({name, "", false});
    return words;
  }();
  return kWords;
}

std::vector<std::string> plain(const std::vector<ValueWord>& words) {
  std::vector<std::string> out;
  out.reserve(words.size());
  for (const ValueWord& value : words) out.push_back(value.word);
  return out;
}

/// "64MiB", "1.5GB" (decimal), "1G" (binary, as dd and rclone have it), "4096".
std::optional<i64> parse_size(const std::string& text) {
  struct Unit {
    std::string_view name;
    i64 bytes;
  };
  static constexpr Unit kUnits[] = {
      {"", 1},           {"B", 1},           {"K", 1LL << 10},          {"KiB", 1LL << 10},
      {"KB", 1'000},     {"kB", 1'000},      {"M", 1LL << 20},          {"MiB", 1LL << 20},
      {"MB", 1'000'000}, {"G", 1LL << 30},   {"GiB", 1LL << 30},        {"GB", 1'000'000'000},
      {"T", 1LL << 40},  {"TiB", 1LL << 40}, {"TB", 1'000'000'000'000},
  };
  const char* const last = text.data() + text.size();
  i64 number = 0;
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc() || number < 0) return std::nullopt;
  // Of a fraction its digits, and the power of ten that they are divided by.
  i64 digits = 0, power = 1;
  const char* at = end;
  if (at != last && *at == '.')
    for (++at; at != last && *at >= '0' && *at <= '9'; ++at) {
      constexpr i64 kMostDigits = 1'000'000'000;
      if (power >= kMostDigits) return std::nullopt;
      digits = 10 * digits + (*at - '0');
      power *= 10;
    }
  const std::string_view unit(at, static_cast<std::size_t>(last - at));
  for (const Unit& known : kUnits)
    if (known.name == unit && (power == 1 || known.bytes > 1))
      if (const auto bytes = checked_mul(number, known.bytes)) {
        const double part = static_cast<double>(digits) / static_cast<double>(power);
        return checked_add(*bytes, static_cast<i64>(part * static_cast<double>(known.bytes)));
      }
  return std::nullopt;
}

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Finds the cache as huggingface_hub does.
fs::path hub_cache() {
  if (const std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface" / "hub";
  return fs::path(variable("HOME")) / ".cache" / "huggingface" / "hub";
}

/// "org/name", as the hub writes it.
bool is_repository_name(const std::string& text) {
  constexpr std::string_view kWords = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == text.size() || text[0] == '.') return false;
  return text.find('/', slash + 1) == std::string::npos &&
         text.find_first_not_of(std::string(kWords) + "/") == std::string::npos;
}

/// The snapshot that refs/main names; empty where there is none.
fs::path snapshot_in(const fs::path& repository) {
  constexpr i64 kMaxCommitBytes = 256;
  const fs::path main = repository / "refs" / "main";
  if (!is_file(main)) return {};
  std::string commit = read_small_file(main, kMaxCommitBytes, ErrorCode::NotSupported);
  commit.erase(commit.find_last_not_of(" \r\n") + 1);
  if (commit.empty() || commit.find('/') != std::string::npos || commit.starts_with('.')) return {};
  const fs::path snapshot = repository / "snapshots" / commit;
  return is_directory_at(snapshot) ? snapshot : fs::path();
}

}  // namespace

std::string nearest(const std::string& typed, const std::vector<std::string>& known) {
  std::string best;
  constexpr std::size_t kLeastLetters = 3;
  // Dashes, and the "hf:" that many words begin with, are no letters that somebody mistypes.
  const std::size_t start = typed.starts_with("hf:") ? 3 : std::min(typed.size(), typed.find_first_not_of('-'));
  const std::size_t letters = typed.size() - start;
  // The typed word may be the beginning of a longer one.
  if (letters >= kLeastLetters)
    for (const std::string& word : known)
      if (word.starts_with(typed) && (best.empty() || word.size() < best.size())) best = word;
  if (!best.empty()) return best;
  // With more than a third of other letters it is another word.
  std::size_t least = std::max<std::size_t>(letters / 3, 1) + 1;
  for (const std::string& word : known)
    if (const std::size_t distance = edit_distance(typed, word); distance < least) {
      least = distance;
      best = word;
    }
  return best;
}

std::string suggestion(const std::string& typed, const std::vector<std::string>& known) {
  const std::string best = nearest(typed, known);
  return best.empty() ? "" : "; did you mean " + best + "?";
}

std::string suggestions(const std::string& typed, std::vector<std::string> known) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (std::size_t i = 0; i < kMost; ++i) {
    const std::string near = nearest(typed, known);
    if (near.empty()) break;
    text += (text.empty() ? "" : " or ") + near;
    std::erase(known, near);
  }
  return text.empty() ? "" : "; did you mean " + text + "?";
}

std::string unknown_value(const std::string& typed, const std::vector<ValueWord>& known) {
  if (std::ranges::find(known, typed, &ValueWord::word) != known.end()) return {};
  const std::vector<std::string> words = plain(known);
  return fmt::format("'{}' is not one of {}{}", typed, fmt::join(words, ", "), suggestion(typed, words));
}

ValueKind glu(GluField field, bool in_help) {
  const std::vector<ValueWord> words = {
      {"split", "gate and up as two tensors", in_help},
      {"contiguous", "all gate rows, then all up rows", in_help},
      {"interleaved:32", "32 gate rows, 32 up rows and so on; or any other number. It is 32 where none is given",
       in_help},
  };
  return {[field, words](Options& options, const std::string& typed) -> std::string {
            try {
              if (!typed.empty() && typed != "keep") field(options) = parse_glu(typed);
              return {};
            } catch (const Error& error) {
              return error.what() + suggestion(typed, plain(words));
            }
          },
          words};
}

ValueKind naming(NamingField field) {
  return {[field](Options& options, const std::string& typed) -> std::string {
            if (typed.empty() || typed == "keep") return {};
            if (find_expert_naming(typed) == nullptr) {
              const std::string near = suggestion(typed, plain(naming_words()));
              fail(ErrorCode::UnknownNaming, {}, "'{}' is not a naming{} `glu-ckpt layouts` lists them", typed,
                   near.empty() ? ";" : near);
            }
            field(options) = typed;
            return {};
          },
          naming_words()};
}

ValueKind target() {
  std::vector<ValueWord> words = {{"megatron", "Megatron-Core: torch_dist, and the arguments that it needs"},
                                  {"hf", "transformers: the family that SRC came from, or hf:<model_type>"},
                                  {"vllm", "another word for hf, as are sglang and transformers"},
                                  {"transformers", "", false},
                                  {"sglang", "", false},
                                  {"torchtitan", "torchtitan: torch.distributed.checkpoint"}};
  for (const ValueWord& naming : naming_words())
    if (naming.word.starts_with("hf:")) words.push_back(naming);
  return {
      [known = plain(words)](Options& options, const std::string& written) -> std::string {
        // Programs are written with capitals; files are not meant here.
        std::string typed = written;
        std::ranges::transform(typed, typed.begin(),
                               [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        // What these programs load is what the hub has.
        constexpr std::string_view kOfTheHub[] = {"transformers", "vllm", "sglang"};
        // What other programs load, or write, is one of the targets.
        constexpr std::pair<std::string_view, std::string_view> kOthers[] = {{"nemo", "megatron"},
                                                                             {"mcore", "megatron"},
                                                                             {"megatron-core", "megatron"},
                                                                             {"megatron-lm", "megatron"},
                                                                             {"bridge", "megatron"},
                                                                             {"megatron-bridge", "megatron"},
                                                                             {"huggingface", "hf"},
                                                                             {"hub", "hf"},
                                                                             {"safetensors", "hf"},
                                                                             {"trl", "hf"},
                                                                             {"llama.cpp", "hf"},
                                                                             {"tensorrt-llm", "hf"},
                                                                             {"verl", "hf"},
                                                                             {"gguf", "hf"},
                                                                             {"ollama", "hf"},
                                                                             {"deepspeed", "hf"}};
        // What somebody types who takes this for the option of a dtype.
        constexpr std::string_view kDtypes[] = {"bf16", "bfloat16", "f16", "fp16", "float16", "f32", "fp32", "float32"};
        constexpr const char* kTargets = "megatron, torchtitan, hf and hf:<model_type> are";
        if (typed.empty()) return fmt::format("it is empty; {} targets", kTargets);
        if (!typed.starts_with("hf:") && std::ranges::find(known, typed) == known.end()) {
          if (std::ranges::count(kDtypes, typed) > 0)
            return fmt::format(
                "'{}' is no target; {}; quantized weights become bf16 with --decode bf16, and others "
                "another dtype with --dtype",
                typed, kTargets);
          const auto other = std::ranges::find(kOthers, typed, [](const auto& pair) { return pair.first; });
          return fmt::format(
              "'{}' is no target; {}{}", typed, kTargets,
              other == std::end(kOthers) ? suggestion(typed, known) : fmt::format("; did you mean {}?", other->second));
        }
        if (typed == "vllm" || typed == "sglang") options.from.adapter_layout.insert(0, typed);
        options.convert.target = std::ranges::count(kOfTheHub, typed) > 0 ? "hf" : typed;
        return {};
      },
      words};
}

ValueKind checkpoint(TextField field) {
  return {[field](Options& options, const std::string& typed) {
    field(options) = find_input(typed);
    return std::string();
  }};
}

ValueKind config_file(TextField field) {
  return {[field](Options& options, const std::string& typed) {
    const fs::path inside = fs::path(typed) / "config.json";
    field(options) = is_directory_at(typed) && is_file(inside) ? inside.string() : typed;
    return std::string();
  }};
}

ValueKind size(BytesField field, i64 least) {
  return {[field, least](Options& options, const std::string& typed) -> std::string {
    const auto bytes = parse_size(typed);
    if (!bytes) return fmt::format("'{}' is not a size; say for example 512MiB or 5GB", typed);
    if (*bytes < least) return fmt::format("'{}' is too little: at least {}", typed, least == 1 ? "1 byte" : "1MiB");
    field(options) = *bytes;
    return {};
  }};
}

ValueKind kept_experts() {
  return {[](Options& options, const std::string& typed) {
    if (!options.from.keep_experts.empty()) return std::string("--experts said already which experts are kept");
    options.from.keep_experts = typed;
    return std::string();
  }};
}

ValueKind grouping_or_experts(ValueKind grouping) {
  grouping.words.push_back({"shared", "an adapter's factors that experts share"});
  grouping.set = [words = grouping.set](Options& options, const std::string& typed) {
    if (typed == "shared") {
      options.from.adapter_layout += kSharedFactors;
      return std::string();
    }
    const bool is_range = typed.find_first_not_of("0123456789,-") == typed.npos && !typed.empty();
    if (!is_range) return words(options, typed);
    if (!options.from.keep_experts.empty()) return std::string("--keep-experts said already which experts are kept");
    options.from.keep_experts = typed;
    return std::string();
  };
  return grouping;
}

ValueKind dropped_parts() {
  ValueKind kind;
  kind.words = {{"mtp", "multi-token prediction"}, {"vision", "all but the language model"}, {"mtp,vision", "", false}};
  kind.set = [known = kind.words](Options& options, const std::string& typed) {
    for (std::size_t begin = 0; begin <= typed.size();) {
      const std::size_t end = std::min(typed.find(',', begin), typed.size());
      const std::string word = typed.substr(begin, end - begin);
      if (word != "mtp" && word != "vision") return unknown_value(word, known);
      (word == "mtp" ? options.from.drop_mtp : options.from.drop_vision) = true;
      begin = end + 1;
    }
    return std::string();
  };
  return kind;
}

ValueKind percent() {
  return {[](Options& options, const std::string& typed) -> std::string {
    const bool has_sign = typed.ends_with('%');
    const auto percent = parse_number<double>(std::string_view(typed).substr(0, typed.size() - (has_sign ? 1 : 0)));
    // Nobody takes other numbers without the sign for a share.
    if (percent && *percent > 0 && *percent < 1 && !has_sign)
      return fmt::format("'{}' may mean {}% or {}%; say which, with the %", typed, typed, 100 * *percent);
    if (!percent || !(*percent > 0 && *percent <= 100))
      return fmt::format("'{}' is no share such as 5% or 0.1%, more than 0 and at most 100%", typed);
    options.verify.subset.percent = *percent;
    return {};
  }};
}

ValueKind part() {
  return {[](Options& options, const std::string& typed) -> std::string {
    const std::size_t slash = typed.find('/');
    const auto part = parse_number<i64>(typed.substr(0, slash));
    const auto parts = parse_number<i64>(slash == typed.npos ? "" : typed.substr(slash + 1));
    if (!part || !parts || *part < 1 || *part > *parts)
      return fmt::format("'{}' is no part such as 2/8, from 1/8 to 8/8", typed);
    options.verify.subset.part = *part;
    options.verify.subset.parts = *parts;
    options.convert.part = {*part, *parts};
    return {};
  }};
}

ValueKind token_counts() {
  return {[](Options& options, const std::string& typed) -> std::string {
    constexpr i64 kMost = 1 << 24;
    for (std::size_t begin = 0; begin <= typed.size();) {
      const std::size_t end = std::min(typed.find(',', begin), typed.size());
      const auto count = parse_number<i64>(typed.substr(begin, end - begin));
      if (!count || *count < 1 || *count > kMost)
        return fmt::format("'{}' is no list of numbers from 1 to {}, such as 1,8,64", typed, kMost);
      options.bench.tokens.push_back(*count);
      begin = end + 1;
    }
    return {};
  }};
}

std::string find_input(const std::string& text) {
  if (text == "-")
    fail(ErrorCode::Usage, {text, {}}, "'-': a checkpoint is not read from standard input; name a file or directory");
  if (is_remote(text) || text.find("://") != std::string::npos) return use_remote(text);
  if (text.empty() || path_exists(text)) {
    if (text.empty() || !is_directory_at(fs::path(text) / "snapshots")) return text;
    const fs::path snapshot = snapshot_in(text);
    return snapshot.empty() ? text : snapshot.string();
  }
  if (const std::string partial = text + std::string(kPartialSuffix); is_directory_at(partial))
    fail(ErrorCode::NotFound, {text, {}}, "{}: does not exist yet: {} is a conversion to it that was not finished",
         text, partial);
  if (!is_repository_name(text) || name_taken(text)) return text;
  std::string folder = "models--" + text;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repository = hub_cache() / folder;
  const fs::path snapshot = snapshot_in(repository);
  // Where refs/main is missing, the reader lists the snapshots and asks for one.
  if (snapshot.empty() && is_directory_at(repository / "snapshots")) return repository.string();
  if (snapshot.empty())
    fail(ErrorCode::NotFound, {text, {}},
         "{}: does not exist here. If it is a repository of the Hugging Face hub: there is none in {}; hf://{} is read "
         "from the hub itself",
         text, repository.string(), text);
  return snapshot.string();
}

}  // namespace glu_ckpt::cli
