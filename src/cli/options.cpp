#include "cli/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "bench/bench.hpp"
#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "core/usable_cores.hpp"

namespace glu_ckpt::cli {
namespace {

constexpr std::string_view kAbout =
    "Rewrites the expert weights of a Mixture-of-Experts checkpoint from one layout to another, bit for "
    "bit.\n\nExamples:";

/// Behind the program's name.
constexpr std::string_view kExamples[] = {
    "inspect Qwen3-30B-A3B",
    "convert Qwen3-30B-A3B out --naming megatron --experts grouped --glu interleaved:32",
    "convert out back --naming hf:qwen3_moe --experts indexed --glu split",
    "verify Qwen3-30B-A3B out --forward",
    "stamp old_megatron --glu contiguous",
};

std::string about(const std::string& program) {
  std::string text(kAbout);
  for (const std::string_view example : kExamples) text += fmt::format("\n  {} {}", program, example);
  return text + "\n";
}

/// Option values as typed, before they mean anything.
struct Texts {
  std::string target, scope = "model", unknown = "refuse", naming, experts, bias_experts, glu, shared_glu;
  std::string from_naming, from_glu, from_shared_glu, from_optimizer_glu;
  std::string to_naming, to_glu, to_shared_glu, to_optimizer_glu;
  std::string max_shard, max_memory, device_memory, verify = "digest", progress = "auto", reflink = "auto",
                                                    format = "keep", optimizer = "keep", activation,
                                                    compute = "weights", bench_size, sample, part;
};

/// What is wrong with a number of 64 bits, or nothing: CLI11 itself takes -1 for 2^64 - 1.
std::string u64_fault(const std::string& text) {
  if (parse_number<u64>(text)) return {};
  return "'" + text + "' is not a number from 0 to 2^64 - 1";
}

/// "5%" or "0.1%"; the sign may be left out.
double parse_percent(const std::string& text) {
  const auto percent =
      parse_number<double>(std::string_view(text).substr(0, text.size() - (text.ends_with('%') ? 1 : 0)));
  if (!percent || !(*percent > 0 && *percent <= 100))
    fail(ErrorCode::Usage, {}, "--sample: '{}' is no share such as 5% or 0.1%, more than 0 and at most 100%", text);
  return *percent;
}

/// "2/8".
std::pair<i64, i64> parse_part(const std::string& text) {
  const std::string_view whole = text;
  const std::size_t slash = std::min(whole.find('/'), whole.size() - 1);
  const auto part = parse_number<i64>(whole.substr(0, slash)), parts = parse_number<i64>(whole.substr(slash + 1));
  if (whole[slash] != '/' || !part || !parts || *part < 1 || *part > *parts)
    fail(ErrorCode::Usage, {}, "--part: '{}' is no part such as 2/8, from 1/8 to 8/8", text);
  return {*part, *parts};
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

/// "; did you mean X?", or nothing where nothing is near.
std::string suggestion(const std::string& typed, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = typed.size() / 3 + 2;
  for (const std::string& word : known)
    if (const std::size_t distance = edit_distance(typed, word); distance < least) {
      least = distance;
      best = word;
    }
  return best.empty() ? "" : "; did you mean " + best + "?";
}

class Parser {
 public:
  explicit Parser(const std::string& program) : app_(about(program), program), program_(program) {
    app_.set_version_flag("--version", program + " " GLU_CKPT_VERSION);
    app_.require_subcommand(1);
    add_inspect();
    add_convert(Command::Convert, "convert", "write DST in another layout, verified");
    add_convert(Command::Plan, "plan", "say what convert would do; write nothing");
    add_verify();
    add_digest();
    add_check();
    add_stamp();
    add_forward();
    add_bench();
    add_doctor();
    CLI::App* layouts = add(Command::Layouts, "layouts", "the table of namings");
    layouts->add_flag("--json", options_.json, "one JSON object on stdout");
  }

  std::optional<Options> parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& success) {
      app_.exit(success);
      return std::nullopt;
    } catch (const CLI::ParseError& error) {
      refuse_unknown_command(argc, argv);
      fail(ErrorCode::Usage, {}, "{}{}", error.what(), hint(argc, argv));
    }
    interpret();
    return options_;
  }

 private:
  CLI::App* add(Command command, const std::string& name, const std::string& about) {
    CLI::App* sub = app_.add_subcommand(name, about);
    sub->callback([this, command] { options_.command = command; });
    return sub;
  }

  void add_common(CLI::App* sub) {
    sub->add_flag("--json", options_.json, "one JSON object on stdout");
    sub->add_flag("-q,--quiet", options_.quiet, "no progress, no notes");
    sub->add_flag("-v,--verbose", options_.verbose, "say more");
  }

  void add_from(CLI::App* sub) {
    sub->add_option("--from-naming", texts_.from_naming, "the source's naming, where its keys fit several");
    sub->add_option("--from-config", options_.from.config_file,
                    "a config.json that says what model the source is, where none lies beside it");
    sub->add_option("--from-glu", texts_.from_glu, "the source's order of gate and up: contiguous, interleaved:K");
    sub->add_option("--from-shared-glu", texts_.from_shared_glu, "the same for its shared expert");
    sub->add_option("--from-optimizer-glu", texts_.from_optimizer_glu,
                    "the same for the optimizer's state of routed experts; default as --from-glu");
  }

  void add_work(CLI::App* sub) {
    sub->add_option("-j,--jobs", options_.run.jobs, "worker threads (default: one per core that it may run on)")
        ->check(CLI::Range(1, 1024));
    sub->add_option("--max-memory", texts_.max_memory, "bytes of all buffers together (default 1GiB)");
    sub->add_option("--device", options_.run.device, "auto, cpu, cuda, cuda:N or cuda:all (default auto)");
    sub->add_option("--device-memory", texts_.device_memory, "bytes of the buffers on each GPU (default 1GiB)");
    sub->add_option("--progress", texts_.progress, "auto, always, never or json")
        ->check(CLI::IsMember({"auto", "always", "never", "json"}));
  }

  /// What experts compute, and in what. Options for when they are run.
  std::vector<CLI::Option*> add_activation(CLI::App* sub) {
    return {
        sub->add_option("--activation", texts_.activation,
                        "swiglu, clamped_swiglu, geglu_tanh, geglu_erf, quick_geglu, clamped_quick_geglu, reglu, glu "
                        "or squared_relu; default as config.json says"),
        sub->add_option("--alpha", compute_.activation.alpha, "of the quick GeGLUs (default 1.702)"),
        sub->add_option("--limit", compute_.activation.limit, "where clamped kinds clamp"),
        sub->add_option("--offset", compute_.activation.offset, "added to the linear term of the quick GeGLUs"),
        sub->add_option(
               "--compute", texts_.compute,
               "weights (their dtype, sums in fp32) or fp32, which shows smaller differences (default weights)")
            ->check(CLI::IsMember({"weights", "fp32"}))};
  }

  void add_inspect() {
    CLI::App* sub = add(Command::Inspect, "inspect", "what is it: layout, layers, experts, shapes; reads headers only");
    sub->add_option("PATH", options_.input, "file or directory")->required();
    add_from(sub);
    add_common(sub);
  }

  void add_convert(Command command, const std::string& name, const std::string& about) {
    CLI::App* sub = add(command, name, about);
    sub->add_option("SRC", options_.input, "file or directory")->required();
    sub->add_option("DST", options_.output, "directory, or one file if it ends in .safetensors, .pt, .pth or .bin")
        ->required();
    sub->add_option("--to", texts_.target,
                    "the program that loads DST as it is: megatron, hf (or hf:<model_type>), torchtitan");
    sub->add_option("--scope", texts_.scope,
                    "what a change of naming renames: the whole model, or the experts alone (default model)")
        ->check(CLI::IsMember({"model", "experts"}));
    sub->add_option("--unknown", texts_.unknown,
                    "refuse tensors that no map knows, or keep them beside the model (default refuse)")
        ->check(CLI::IsMember({"refuse", "keep"}));
    sub->add_option("--naming", texts_.naming, "naming to write (`glu-ckpt layouts`); default keep");
    sub->add_option("--experts", texts_.experts, "indexed or grouped; default keep");
    sub->add_option("--bias-experts", texts_.bias_experts, "the same for biases alone; default as --experts");
    sub->add_option("--glu", texts_.glu, "split, contiguous or interleaved:K; default keep");
    sub->add_option("--shared-glu", texts_.shared_glu, "the same for the shared expert; default keep");
    add_from(sub);
    sub->add_option("--format", texts_.format, "keep, safetensors, torch or torch-dist")
        ->check(CLI::IsMember({"keep", "safetensors", "torch", "torch-dist"}));
    sub->add_option("--optimizer", texts_.optimizer, "keep, or drop: leave the optimizer's tensors out")
        ->check(CLI::IsMember({"keep", "drop"}));
    sub->add_option("--max-shard-size", texts_.max_shard, "tensor bytes per shard (default 5GB)");
    sub->add_option(
           "--verify", texts_.verify,
           "digest, readback (from the disk, not the page cache), forward (the experts compute the same, too) or none")
        ->check(CLI::IsMember({"digest", "readback", "forward", "none"}));
    sub->add_option("--reflink", texts_.reflink,
                    "auto (blocks of the output are the source's where the filesystem can share them and long runs "
                    "stay), always (short runs, too) or never (default auto)")
        ->check(CLI::IsMember({"auto", "always", "never"}));
    add_activation(sub);
    sub->add_flag("--force", options_.convert.force, "convert even if the source has that layout already");
    sub->add_flag("--overwrite", options_.convert.overwrite, "replace DST once the new one is complete");
    sub->add_flag("--resume", options_.convert.resume,
                  "go on with what a stopped run left in DST.partial, if there is any");
    if (command == Command::Convert) sub->add_flag("--dry-run", options_.dry_run, "same as plan");
    add_work(sub);
    add_common(sub);
  }

  void add_verify() {
    CLI::App* sub = add(Command::Verify, "verify", "are these the same model, in whatever two layouts?");
    sub->add_option("A", options_.input, "file or directory")->required();
    sub->add_option("B", options_.output, "file or directory")->required();
    add_from(sub);
    sub->add_option("--to-naming", texts_.to_naming, "as --from-naming, for B");
    sub->add_option("--to-glu", texts_.to_glu, "as --from-glu, for B");
    sub->add_option("--to-shared-glu", texts_.to_shared_glu, "as --from-shared-glu, for B");
    sub->add_option("--to-optimizer-glu", texts_.to_optimizer_glu, "as --from-optimizer-glu, for B");
    CLI::Option* forward = sub->add_flag("--forward", options_.verify.forward,
                                         "run the experts of both on the same tokens, too: no bit may differ");
    const std::vector<CLI::Option*> others = add_activation(sub);
    for (CLI::Option* option : others) option->needs(forward);
    sub->add_option("--layers", options_.verify.subset.layers, "only these, as `inspect` numbers them: 3,5-7,mtp.0");
    sub->add_option("--sample", texts_.sample, "only P% of the matrices and tensors, that --seed chooses")
        ->excludes(forward);
    sub->add_option("--part", texts_.part, "only the part I/N of them, 1/N to N/N: for N machines")->excludes(forward);
    seed_ = sub->add_option("--seed", options_.verify.subset.seed, "of the tokens, or of the sample (default 0)");
    seed_->check(CLI::Validator(u64_fault, "0 to 2^64 - 1"));
    add_work(sub);
    add_common(sub);
  }

  void add_digest() {
    CLI::App* sub = add(Command::Digest, "digest", "one fingerprint, the same for every layout of the same weights");
    sub->add_option("PATH", options_.input, "file or directory")->required();
    add_from(sub);
    add_work(sub);
    add_common(sub);
  }

  void add_check() {
    CLI::App* sub = add(Command::Check, "check", "compare a checkpoint with its own record and checksums; reads all");
    sub->add_option("PATH", options_.input, "file or directory")->required();
    add_work(sub);
    add_common(sub);
  }

  void add_stamp() {
    CLI::App* sub = add(Command::Stamp, "stamp", "record a layout that you know and the file does not say");
    sub->add_option("PATH", options_.input, "file or directory")->required();
    sub->add_option("--glu", texts_.from_glu, "contiguous or interleaved:K");
    sub->add_option("--shared-glu", texts_.from_shared_glu, "the same for the shared expert");
    sub->add_option("--optimizer-glu", texts_.from_optimizer_glu, "the same for the optimizer's state");
    sub->add_option("--naming", texts_.from_naming, "the naming, where the keys fit several");
    add_common(sub);
  }

  void add_forward() {
    CLI::App* sub = add(Command::Forward, "forward", "run one layer's experts on given tokens");
    sub->add_option("CKPT", options_.forward.checkpoint, "file or directory")->required();
    sub->add_option("--layer", options_.forward.layer, "the layer, as `inspect` numbers it: 3, mtp.0")->required();
    sub->add_option("--input", options_.forward.tokens,
                    "safetensors file with x [T, H], index [T, top_k] I64 and weights [T, top_k]")
        ->required();
    sub->add_option("--output", options_.forward.output, "safetensors file to write y [T, H] to")->required();
    add_activation(sub);
    sub->add_flag("--overwrite", options_.forward.overwrite, "replace the output file");
    add_from(sub);
    sub->add_option("-j,--jobs", options_.run.jobs, "worker threads (default: one per core that it may run on)")
        ->check(CLI::Range(1, 1024));
    sub->add_option("--max-memory", texts_.max_memory, "bytes of weights read at a time (default 1GiB)");
    sub->add_option("--device", options_.run.device, "auto, cpu, cuda or cuda:N (default auto, which is cpu)");
    sub->add_option("--device-memory", texts_.device_memory, "bytes of the buffers on a GPU (default 1GiB)");
    add_common(sub);
  }

  void add_bench() {
    CLI::App* bench = app_.add_subcommand("bench", "speeds, each beside this machine's own ceiling in the same run");
    bench->require_subcommand(1);
    CLI::App* kernels = bench->add_subcommand("kernels", "the GPU's layout kernels beside cudaMemcpyAsync");
    kernels->callback([this] { options_.command = Command::BenchKernels; });
    kernels->add_option("--device", options_.run.device, "cuda or cuda:N (default cuda:0)");
    kernels->add_flag("--json", options_.json, "one JSON object on stdout");
    std::vector<std::string> models;
    for (const ForwardShape& shape : forward_shapes()) models.push_back(shape.model);
    CLI::App* forward = bench->add_subcommand(
        "forward", "the grouped MLP beside cuBLAS, a plain read of the weights and a dense product");
    forward->callback([this] { options_.command = Command::BenchForward; });
    forward->add_option("--device", options_.run.device, "cuda, cuda:N or cpu (default cuda:0)");
    forward->add_option("--model", options_.bench.model, "one of them alone; on the CPU (default Qwen3-30B) too")
        ->check(CLI::IsMember(models));
    forward
        ->add_option("--tokens", options_.bench.tokens,
                     "per expert: 8, or 1,8,64 (default 1,8,64,256,1024,4096; on the CPU 1,4,16)")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 24));
    forward->add_option("--rounds", options_.bench.rounds, "rounds at most (default 11)")->check(CLI::Range(1, 1000));
    forward->add_option("-j,--jobs", options_.run.jobs, "threads on the CPU (default: one per core that it may run on)")
        ->check(CLI::Range(1, 1024));
    forward->add_option("--max-memory", texts_.max_memory,
                        "bytes on the CPU; layers are cut to the experts that fit (default 1GiB)");
    forward->add_flag("--json", options_.json, "one JSON object on stdout");
    CLI::App* convert =
        bench->add_subcommand("convert", "conversions beside a copy and a plain write of the same bytes");
    convert->callback([this] { options_.command = Command::BenchConvert; });
    convert->add_option("--dir", options_.bench.dir, "where to write; nothing is left there (default: here)");
    convert->add_option("--size", texts_.bench_size, "bytes of the checkpoint that is converted (default 1GiB)");
    convert->add_option("-j,--jobs", options_.run.jobs, "worker threads (default: one per core that it may run on)")
        ->check(CLI::Range(1, 1024));
    convert->add_option("--max-memory", texts_.max_memory, "bytes of all buffers together (default 1GiB)");
    convert->add_flag("--json", options_.json, "one JSON object on stdout");
  }

  void add_doctor() {
    CLI::App* sub = add(Command::Doctor, "doctor", "device, filesystem and I/O paths in use, and why");
    sub->add_option("PATH", options_.input, "where a checkpoint would be written (default: here)");
    sub->add_option("-j,--jobs", options_.run.jobs, "worker threads (default: one per core that it may run on)")
        ->check(CLI::Range(1, 1024));
    sub->add_flag("--json", options_.json, "one JSON object on stdout");
  }

  /// The command that the words spell, as far as they spell one, and the number of the first word behind it.
  std::pair<const CLI::App*, int> deepest_command(int argc, const char* const* argv) const {
    const CLI::App* app = &app_;
    int next = 1;
    for (; next < argc; ++next) {
      const auto commands = app->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == argv[next]; });
      if (commands.empty()) break;
      app = commands.front();
    }
    return {app, next};
  }

  void refuse_unknown_command(int argc, const char* const* argv) const {
    const auto [app, next] = deepest_command(argc, argv);
    std::vector<std::string> commands;
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; }))
      commands.push_back(sub->get_name());
    if (!commands.empty() && next < argc && argv[next][0] != '-')
      fail(ErrorCode::Usage, {}, "'{}' is not a command{}", argv[next], suggestion(argv[next], commands));
  }

  /// What a mistyped option may have been.
  std::string hint(int argc, const char* const* argv) const {
    if (argc < 2) return "; run " + program_ + " --help";
    const auto [app, next] = deepest_command(argc, argv);
    std::vector<std::string> names;
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (int i = next; i < argc; ++i) {
      const std::string typed = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
      if (typed.starts_with("--") && std::ranges::find(names, typed) == names.end()) return suggestion(typed, names);
    }
    return "";
  }

  static void answer(const std::string& text, std::optional<Glu>& glu) {
    if (!text.empty() && text != "keep") glu = parse_glu(text);
  }

  static void answer_naming(const std::string& text, std::optional<std::string>& naming) {
    if (text.empty() || text == "keep") return;
    if (find_naming(text) == nullptr) {
      std::vector<std::string> known;
      for (const NamingSummary& row : naming_summaries()) {
        known.push_back(row.name);
        for (const std::string& type : row.model_types) known.push_back("hf:" + type);
      }
      fail(ErrorCode::UnknownNaming, {}, "'{}' is not a naming{} `glu-ckpt layouts` lists them", text,
           suggestion(text, known).empty() ? ";" : suggestion(text, known));
    }
    naming = text;
  }

  static void answer_target(const std::string& text, std::optional<std::string>& target) {
    static const std::vector<std::string> kTargets = {"megatron", "torchtitan", "hf"};
    if (text.empty()) return;
    if (std::ranges::find(kTargets, text) == kTargets.end() && !text.starts_with("hf:"))
      fail(ErrorCode::Usage, {}, "--to: '{}' is no target{}; megatron, torchtitan, hf and hf:<model_type> are", text,
           suggestion(text, kTargets));
    target = text;
  }

  void interpret() {
    answer_naming(texts_.naming, options_.convert.to.naming);
    if (!texts_.experts.empty() && texts_.experts != "keep")
      options_.convert.to.experts = parse_experts(texts_.experts);
    if (!texts_.bias_experts.empty() && texts_.bias_experts != "keep")
      options_.convert.to.bias_experts = parse_experts(texts_.bias_experts);
    answer(texts_.glu, options_.convert.to.glu);
    answer(texts_.shared_glu, options_.convert.to.shared_glu);
    answer_naming(texts_.from_naming, options_.from.naming);
    answer(texts_.from_glu, options_.from.glu);
    answer(texts_.from_shared_glu, options_.from.shared_glu);
    answer(texts_.from_optimizer_glu, options_.from.optimizer_glu);
    options_.from.drop_optimizer = texts_.optimizer == "drop";
    answer_target(texts_.target, options_.convert.target);
    if (texts_.scope == "experts") options_.convert.to.scope = Scope::Experts;
    options_.convert.to.keep_unknown = texts_.unknown == "keep";
    answer_naming(texts_.to_naming, options_.verify.b.naming);
    answer(texts_.to_glu, options_.verify.b.glu);
    answer(texts_.to_shared_glu, options_.verify.b.shared_glu);
    answer(texts_.to_optimizer_glu, options_.verify.b.optimizer_glu);
    if (!texts_.max_shard.empty()) options_.convert.max_shard_bytes = parse_size(texts_.max_shard);
    if (!texts_.max_memory.empty()) options_.run.memory_bytes = parse_size(texts_.max_memory);
    if (!texts_.device_memory.empty()) options_.run.device_memory_bytes = parse_size(texts_.device_memory);
    if (!texts_.bench_size.empty()) options_.bench.size_bytes = parse_size(texts_.bench_size);
    if (options_.bench.size_bytes < 1) fail(ErrorCode::Usage, {}, "--size must be at least 1 byte");
    constexpr i64 kLeastMemory = i64{1} << 20;
    if (options_.run.memory_bytes < kLeastMemory) fail(ErrorCode::Usage, {}, "--max-memory must be at least 1MiB");
    if (options_.run.device_memory_bytes < kLeastMemory)
      fail(ErrorCode::Usage, {}, "--device-memory must be at least 1MiB");
    if (options_.convert.max_shard_bytes < 1) fail(ErrorCode::Usage, {}, "--max-shard-size must be at least 1 byte");
    if (!texts_.sample.empty()) options_.verify.subset.percent = parse_percent(texts_.sample);
    if (!texts_.part.empty())
      std::tie(options_.verify.subset.part, options_.verify.subset.parts) = parse_part(texts_.part);
    if (seed_->count() > 0 && !options_.verify.forward && texts_.sample.empty())
      fail(ErrorCode::Usage, {}, "--seed is that of --forward's tokens or of --sample; give one of them");
    if (options_.run.jobs == 0) options_.run.jobs = usable_cores();
    options_.convert.proof = texts_.verify == "none"      ? ProofMode::None
                             : texts_.verify == "digest"  ? ProofMode::Digest
                             : texts_.verify == "forward" ? ProofMode::Forward
                                                          : ProofMode::Readback;
    options_.convert.reflink = texts_.reflink == "always"  ? Reflink::Always
                               : texts_.reflink == "never" ? Reflink::Never
                                                           : Reflink::Auto;
    options_.progress = texts_.progress == "always"  ? ProgressMode::Always
                        : texts_.progress == "never" ? ProgressMode::Never
                        : texts_.progress == "json"  ? ProgressMode::Json
                                                     : ProgressMode::Auto;
    for (const Format format : {Format::Safetensors, Format::Torch, Format::TorchDist})
      if (texts_.format == to_string(format)) options_.convert.format = format;
    if (!texts_.activation.empty()) compute_.activation.kind = parse_activation(texts_.activation);
    compute_.fp32 = texts_.compute == "fp32";
    if (options_.dry_run) options_.command = Command::Plan;
    options_.convert.from = options_.verify.a = options_.forward.from = options_.from;
    options_.convert.compute = options_.verify.compute = options_.forward.compute = compute_;
    options_.convert.seed = options_.verify.subset.seed;
  }

  CLI::App app_;
  std::string program_;
  Options options_;
  /// Of whichever command runs experts.
  ExpertCompute compute_;
  Texts texts_;
  CLI::Option* seed_ = nullptr;
};

}  // namespace

i64 parse_size(const std::string& text) {
  struct Unit {
    std::string_view name;
    i64 bytes;
  };
  static constexpr Unit kUnits[] = {
      {"", 1},
      {"B", 1},
      {"K", 1LL << 10},
      {"KiB", 1LL << 10},
      {"KB", 1'000},
      {"M", 1LL << 20},
      {"MiB", 1LL << 20},
      {"MB", 1'000'000},
      {"G", 1LL << 30},
      {"GiB", 1LL << 30},
      {"GB", 1'000'000'000},
      {"T", 1LL << 40},
      {"TiB", 1LL << 40},
      {"TB", 1'000'000'000'000},
  };
  i64 number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error == std::errc() && number >= 0)
    for (const Unit& known : kUnits)
      if (known.name == unit)
        if (const auto bytes = checked_mul(number, known.bytes)) return *bytes;
  fail(ErrorCode::Usage, {}, "'{}' is not a size; say for example 512MiB or 5GB", text);
}

std::optional<Options> parse_options(int argc, const char* const* argv, const std::string& program) {
  return Parser(program).parse(argc, argv);
}

}  // namespace glu_ckpt::cli
