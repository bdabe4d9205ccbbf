#include "cli/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "bench/bench.hpp"
#include "cli/option_texts.hpp"
#include "cli/option_values.hpp"
#include "cli/parser_table.hpp"
#include "cli/session.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/model.hpp"

namespace glu_ckpt::cli {
namespace {

constexpr const char* kAbout =
    "Converts Mixture-of-Experts checkpoints between Hugging Face, Megatron-Core and torchtitan: whole models renamed "
    "and laid out anew, bit for bit, and compared with the source.";

/// The options that there are. Each has its group of help (`option_defaults()->group`), the name of its value
/// (`type_name`; FILE and DIR are completed as such), its default (`default_str`), and the values that completions
/// offer
/// (`one_of`, `offer`). Help, the manual page and the completions are printed from these (command_table.hpp).
class Parser {
 public:
  explicit Parser(const std::string& program) : app_(kAbout, program), program_(program) {
    app_.set_help_flag("-h,--help", "print this help");
    app_.set_version_flag("-V,--version", program + " " GLU_CKPT_VERSION, "print the version");
    app_.require_subcommand(1);
    examples(&app_, {"inspect Qwen3-30B-A3B", "convert Qwen3-30B-A3B OUT --to megatron", "convert OUT BACK --to hf",
                     "verify Qwen3-30B-A3B BACK"});
    add_inspect();
    add_convert(Command::Plan, "plan", "say what convert would do; write nothing");
    add_convert(Command::Convert, "convert", "write DST in another layout, verified");
    add_stamp();
    add_verify();
    add_diff();
    add_report();
    add_digest();
    add_check();
    add_layouts();
    add_doctor();
    add_forward();
    add_bench();
    add_help();
  }

  std::optional<Options> parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      return answer_with(help_text(table_of(deepest_command(argc, argv).first, notes_)));
    } catch (const CLI::CallForVersion& version) {
      return answer_with(std::string(version.what()) + "\n");
    } catch (const CLI::ParseError& error) {
      if (argc < 2) fail(ErrorCode::Usage, {}, "no command was given; `{} --help` lists them", program_);
      refuse_unknown_command(argc, argv);
      fail(ErrorCode::Usage, {}, "{}{}", error.what(), hint(argc, argv));
    }
    if (command_ == nullptr) return answer_with(help_answer());
    texts_.has_seed = seed_->count() > 0;
    texts_.has_tensors = tensors_->count() > 0;
    interpret(texts_, compute_, options_);
    return options_;
  }

  CommandTable table() const { return table_of(&app_, notes_); }

 private:
  static std::optional<Options> answer_with(const std::string& text) {
    print_out(text);
    return std::nullopt;
  }

  CLI::App* add(Command command, const std::string& name, const std::string& about, CLI::App* parent = nullptr) {
    CLI::App* sub = (parent != nullptr ? parent : &app_)->add_subcommand(name, about);
    sub->callback([this, command, sub] {
      options_.command = command;
      command_ = sub;
    });
    return sub;
  }

  void examples(const CLI::App* app, std::vector<std::string> lines) { notes_.examples[app] = std::move(lines); }

  /// Values that completions offer; help lists them.
  CLI::Option* offer(CLI::Option* option, std::vector<ValueWord> words) {
    notes_.words[option] = std::move(words);
    return option;
  }

  /// Accepts these words and no others.
  CLI::Option* one_of(CLI::Option* option, const std::vector<ValueWord>& words) {
    option->check(
        CLI::Validator([known = plain(words)](const std::string& typed) { return unknown_value(typed, known); }, ""));
    return offer(option, words);
  }

  CLI::Option* offer_glu(CLI::Option* option) {
    option->type_name("ORDER")->check(CLI::Validator(glu_fault, ""));
    return offer(option, hidden(kGluWords));
  }

  CLI::Option* offer_namings(CLI::Option* option) { return offer(option->type_name("NAMING"), naming_words()); }

  CLI::Option* add_jobs(CLI::App* sub) {
    return sub->add_option("-j,--jobs", options_.run.jobs, "worker threads")
        ->type_name("N")
        ->default_str("one per core that it may run on")
        ->check(CLI::Range(1, 1024));
  }

  CLI::Option* add_size(CLI::App* sub, const std::string& name, std::string& text, const std::string& about,
                        const std::string& default_size = "1GiB") {
    return sub->add_option(name, text, about)->type_name("SIZE")->default_str(default_size);
  }

  void add_json(CLI::App* sub) { sub->add_flag("--json", options_.json, "one JSON object on stdout"); }

  void add_common(CLI::App* sub) {
    sub->option_defaults()->group(kGeneral);
    add_json(sub);
    sub->add_flag("-q,--quiet", options_.quiet,
                  "no reports, notes or progress; warnings, errors and data (--json, lists, digests) stay");
    sub->add_flag("-v,--verbose", options_.verbose, "longer reports, and the reasons of decisions");
  }

  void add_from(CLI::App* sub) {
    sub->option_defaults()->group("What the source is, where it does not say");
    offer_namings(sub->add_option("--from-naming", texts_.from_naming, "its naming, where its keys fit several"));
    sub->add_option("--from-config", options_.from.config_file, "a config.json that says what model it is")
        ->type_name("FILE");
    offer_glu(sub->add_option("--from-glu", texts_.from_glu, "its order of gate and up: contiguous, interleaved:K"));
    offer_glu(sub->add_option("--from-shared-glu", texts_.from_shared_glu, "the same for its shared expert"));
    offer_glu(sub->add_option("--from-optimizer-glu", texts_.from_optimizer_glu,
                              "the same for the optimizer's state of routed experts"))
        ->default_str("as --from-glu");
    one_of(sub->add_option("--decode", texts_.decode, "quantized weights become weights of this dtype"),
           {{"bf16"}, {"f32"}})
        ->type_name("DTYPE");
    std::vector<ValueWord> decoders;
    for (const std::string& name : decoder_names()) decoders.push_back({name});
    one_of(sub->add_option("--decode-as", options_.from.decode_as,
                           "the program whose decoder is followed, bit for bit, where programs differ"),
           decoders)
        ->default_str("that of the program that wrote the format")
        ->type_name("PROGRAM");
    one_of(sub->add_option("--encode", texts_.encode, "quantized weights become MXFP8, where that is exact"),
           {{"mxfp8"}})
        ->type_name("FORMAT");
  }

  /// Adds the options for B to a command that compares A with B.
  void add_to(CLI::App* sub) {
    sub->option_defaults()->group("What B is, where it does not say");
    offer_namings(sub->add_option("--to-naming", texts_.to_naming, "as --from-naming, for B"));
    offer_glu(sub->add_option("--to-glu", texts_.to_glu, "as --from-glu, for B"));
    offer_glu(sub->add_option("--to-shared-glu", texts_.to_shared_glu, "as --from-shared-glu, for B"));
    offer_glu(sub->add_option("--to-optimizer-glu", texts_.to_optimizer_glu, "as --from-optimizer-glu, for B"));
  }

  void add_progress(CLI::App* sub) {
    one_of(sub->add_option("--progress", texts_.progress, "progress on stderr"),
           {{"auto", "a bar on a terminal, elsewhere a line every ten seconds"},
            {"always", "elsewhere also a line at the end of each stage"},
            {"never", "nothing"},
            {"json", "an object a line: when a stage begins and ends, and once a second"}})
        ->type_name("WHEN")
        ->default_str("auto");
  }

  void add_work(CLI::App* sub) {
    sub->option_defaults()->group("Work");
    add_jobs(sub);
    add_size(sub, "--max-memory", texts_.max_memory, "bytes of all buffers together");
    offer(sub->add_option("--device", options_.run.device, "auto, cpu, cuda, cuda:N or cuda:all"),
          hidden({{"auto"}, {"cpu"}, {"cuda"}, {"cuda:0"}, {"cuda:all"}}))
        ->type_name("DEVICE")
        ->default_str("auto");
    add_size(sub, "--device-memory", texts_.device_memory, "bytes of the buffers on each GPU");
    add_progress(sub);
  }

  /// Adds the options that say what experts compute, and in which dtype.
  std::vector<CLI::Option*> add_activation(CLI::App* sub, const std::string& group) {
    sub->option_defaults()->group(group);
    std::vector<ValueWord> activations;
    for (const std::string_view name : activation_names()) activations.push_back({std::string(name)});
    return {
        one_of(sub->add_option("--activation", texts_.activation, "the activation"), activations)
            ->type_name("NAME")
            ->default_str("as config.json says"),
        sub->add_option("--alpha", compute_.activation.alpha, "of the quick GeGLUs; situ_glu: the bound of the gate")
            ->type_name("X")
            ->default_str("1.702; 4"),
        sub->add_option("--limit", compute_.activation.limit,
                        "where clamped kinds clamp; situ_glu: the bound of the linear term, default 25")
            ->type_name("X"),
        sub->add_option("--offset", compute_.activation.offset, "added to the linear term of the quick GeGLUs")
            ->type_name("X"),
        one_of(sub->add_option("--compute", texts_.compute, "what intermediate values are rounded to"),
               {{"weights", "the weights' dtype; sums are made in fp32"},
                {"fp32", "nothing, which shows smaller differences"}})
            ->type_name("DTYPE")
            ->default_str("weights")};
  }

  void add_inspect() {
    CLI::App* sub = add(Command::Inspect, "inspect", "what is it: layout, layers, experts, shapes; reads headers only");
    examples(sub, {"inspect Qwen3-30B-A3B", "inspect iter_0001000 --json",
                   "inspect Qwen3-30B-A3B --tensors '*.layers.3.*'"});
    sub->add_option("PATH", options_.input, "file or directory")->required();
    sub->option_defaults()->group("What is told");
    tensors_ = sub->add_option("--tensors", options_.tensors,
                               "list tensors instead: all, or those whose name or matrix fits a pattern")
                   ->type_name("GLOB")
                   ->expected(0, 1);
    sub->add_flag("--strict", options_.strict, "end with status 3 if there is any problem, such as an unknown order");
    add_from(sub);
    add_common(sub);
  }

  void add_convert(Command command, const std::string& name, const std::string& about) {
    CLI::App* sub = add(command, name, about);
    examples(sub, {name + " Qwen3-30B-A3B OUT --to megatron", name + " RUN BACK --to hf --from-glu contiguous",
                   name + " OUT OUT32 --glu interleaved:32", name + " SRC one.safetensors --experts grouped"});
    sub->add_option("SRC", options_.input, "file or directory")->required();
    sub->add_option("DST", options_.output, "directory, or one file if it ends in .safetensors, .pt, .pth or .bin")
        ->required();
    sub->option_defaults()->group("What DST will be; what is not given stays as it is in SRC");
    offer(sub->add_option("--to", texts_.target, "the program that loads DST as it is"), target_words())
        ->check(CLI::Validator(target_fault, ""))
        ->type_name("TARGET");
    offer_namings(sub->add_option("--naming", texts_.naming, "the keys alone; `" + program_ + " layouts` lists them"))
        ->default_str("keep");
    one_of(sub->add_option("--experts", texts_.experts, "how experts are grouped"), kExpertsWords)
        ->type_name("GROUPING")
        ->default_str("keep");
    one_of(sub->add_option("--bias-experts", texts_.bias_experts, "the same for biases alone"), hidden(kExpertsWords))
        ->type_name("GROUPING")
        ->default_str("as --experts");
    offer(offer_glu(sub->add_option("--glu", texts_.glu, "the order of gate and up rows")), kGluWords)
        ->default_str("keep");
    offer_glu(sub->add_option("--shared-glu", texts_.shared_glu, "the same for the shared expert"))
        ->default_str("keep");
    one_of(sub->add_option("--format", texts_.format, "the kind of files"),
           {{"keep"}, {"safetensors"}, {"torch"}, {"torch-dist"}})
        ->type_name("FORMAT")
        ->default_str("keep");
    one_of(sub->add_option("--scope", texts_.scope, "what a change of naming renames"),
           {{"model", "the whole model"}, {"experts", "expert tensors alone, which no program loads"}})
        ->type_name("SCOPE")
        ->default_str("model");
    one_of(sub->add_option("--unknown", texts_.unknown, "tensors that no map knows"),
           {{"refuse", "end with status 4"}, {"keep", "carry them under names of their own"}})
        ->type_name("WHAT")
        ->default_str("refuse");
    one_of(sub->add_option("--optimizer", texts_.optimizer, "the optimizer's tensors"), {{"keep"}, {"drop"}})
        ->type_name("WHAT")
        ->default_str("keep");
    add_size(sub, "--max-shard-size", texts_.max_shard, "tensor bytes per shard", "5GB");
    add_from(sub);
    sub->option_defaults()->group("How DST is written and checked");
    if (command == Command::Convert) sub->add_flag("--dry-run", options_.dry_run, "same as plan");
    one_of(sub->add_option("--verify", texts_.verify, "how DST is compared with SRC before it gets its name"),
           {{"digest", "what is read and what is written"},
            {"readback", "what the disk has, not the page cache"},
            {"forward", "the experts compute the same, too"},
            {"none", "not at all"}})
        ->type_name("HOW")
        ->default_str("digest");
    one_of(sub->add_option("--reflink", texts_.reflink, "share SRC's blocks, where the file system can"),
           {{"auto", "where long runs stay as they are"}, {"always", "short runs, too"}, {"never", "copy"}})
        ->type_name("WHEN")
        ->default_str("auto");
    add_manifest(sub, "write a file with checksums of all others into DST, for check");
    sub->add_flag("--allow-foreign-order", options_.convert.allow_foreign_order,
                  "write an order of gate and up that programs take for another under the same names");
    sub->add_flag("--force", options_.convert.force, "convert even if the source has that layout already");
    sub->add_flag("--overwrite", options_.convert.overwrite, "replace DST once the new one is complete");
    sub->add_flag("--resume", options_.convert.resume,
                  "go on with what a stopped run left in DST.partial, if there is any");
    add_activation(sub, "What --verify forward computes");
    add_work(sub);
    add_common(sub);
  }

  void add_manifest(CLI::App* sub, const std::string& about) {
    one_of(sub->add_option_function<std::string>(
               "--manifest", [this](const std::string&) { options_.convert.sha256_manifest = true; }, about),
           {{"sha256", "glu_ckpt.sha256, which sha256sum reads, too"}})
        ->type_name("KIND");
  }

  void add_verify() {
    CLI::App* sub = add(Command::Verify, "verify", "are these the same model, in whatever two layouts?");
    examples(sub, {"verify Qwen3-30B-A3B OUT", "verify RUN OUT --from-glu contiguous", "verify A B --forward",
                   "verify A B --sample 5%", "verify A gck2:..."});
    sub->add_option("A", options_.input, "file or directory")->required();
    sub->add_option("B", options_.output, "file or directory, or a digest: gck2:...")->required();
    sub->option_defaults()->group("How much is compared");
    sub->add_option("--layers", options_.verify.subset.layers, "only these, as `inspect` numbers them: 3,5-7,mtp.0")
        ->type_name("LIST");
    CLI::Option* sample =
        sub->add_option("--sample", texts_.sample, "only P% of the matrices and tensors, that --seed chooses")
            ->type_name("P%");
    CLI::Option* part = sub->add_option("--part", texts_.part, "only the part I/N of them, 1/N to N/N: for N machines")
                            ->type_name("I/N");
    seed_ = sub->add_option("--seed", options_.verify.subset.seed, "of the tokens, or of the sample")
                ->type_name("N")
                ->default_str("0");
    seed_->check(CLI::Validator(u64_fault, ""));
    sub->option_defaults()->group("Running the experts");
    CLI::Option* forward = sub->add_flag("--forward", options_.verify.forward,
                                         "run the experts of both on the same tokens, too: no bit may differ");
    sample->excludes(forward);
    part->excludes(forward);
    const std::vector<CLI::Option*> others = add_activation(sub, "Running the experts");
    for (CLI::Option* option : others) option->needs(forward);
    add_from(sub);
    add_to(sub);
    add_work(sub);
    add_common(sub);
  }

  /// It reads all, on the CPU alone.
  void add_diff() {
    CLI::App* sub =
        add(Command::Diff, "diff", "which tensors differ, and by how much; a line a layer, with -v a tensor");
    examples(sub, {"diff Qwen3-30B-A3B TUNED", "diff A B --tensors '*.layers.3.*' -v", "diff A B --json",
                   "diff A B --html page.html"});
    sub->add_option("A", options_.input, "file or directory")->required();
    sub->add_option("B", options_.output, "file or directory")->required();
    sub->option_defaults()->group("How much is compared");
    sub->add_option("--tensors", options_.diff.tensors,
                    "only what fits a pattern by its name in A, in B or as reported")
        ->type_name("GLOB");
    sub->option_defaults()->group("The page");
    add_page(sub);
    add_from(sub);
    add_to(sub);
    add_work(sub);
    add_common(sub);
  }

  CLI::Option* add_page(CLI::App* sub) {
    CLI::Option* file = sub->add_option("--html", options_.report_file, "the page to write, which needs no other file")
                            ->type_name("FILE");
    sub->add_flag("--overwrite", options_.overwrite_report, "replace FILE")->needs(file);
    return file;
  }

  void add_report() {
    CLI::App* sub =
        add(Command::Report, "report", "one page to look at: what is in it, how its rows lie, what differs");
    examples(sub, {"report Qwen3-30B-A3B --html page.html", "report A B --html page.html",
                   "report A B --html page.html --forward"});
    sub->add_option("A", options_.input, "file or directory")->required();
    sub->add_option("B", options_.output, "file or directory to compare with A");
    sub->option_defaults()->group("The page");
    add_page(sub)->required();
    CLI::Option* forward = sub->add_flag("--forward", options_.report.forward,
                                         "run the experts of both on the same tokens, too, and show the error");
    for (CLI::Option* option : add_activation(sub, "Running the experts")) option->needs(forward);
    add_from(sub);
    add_to(sub);
    add_work(sub);
    add_common(sub);
  }

  void add_digest() {
    CLI::App* sub = add(Command::Digest, "digest", "one fingerprint, the same for every layout of the same weights");
    examples(sub, {"digest Qwen3-30B-A3B", "digest RUN --from-glu contiguous", "digest A B >DIGESTS",
                   "digest --check DIGESTS"});
    sub->add_option("PATH", options_.paths, "files or directories; of several, a digest and a path a line");
    sub->option_defaults()->group("What is compared");
    sub->add_option("--check", options_.check_file, "digests and paths, as `digest A B` prints them, are compared")
        ->type_name("FILE");
    add_from(sub);
    add_work(sub);
    add_common(sub);
  }

  void add_check() {
    CLI::App* sub = add(Command::Check, "check", "compare a checkpoint with its own record and checksums; reads all");
    examples(sub, {"check OUT", "check OUT --json", "check OUT --manifest sha256"});
    sub->add_option("PATH", options_.input, "file or directory")->required();
    sub->option_defaults()->group("What is compared");
    add_manifest(sub, "such a file must be there; where it is, it is compared anyway");
    sub->add_flag("--strict", options_.strict, "end with status 1 where nothing says what the data should be");
    add_work(sub);
    add_common(sub);
  }

  void add_stamp() {
    CLI::App* sub = add(Command::Stamp, "stamp", "record a layout that you know and the file does not say");
    examples(sub, {"stamp RUN --remove", "stamp RUN --glu contiguous",
                   "stamp RUN --glu interleaved:32 --shared-glu contiguous"});
    sub->add_option("PATH", options_.input, "file or directory")->required();
    sub->option_defaults()->group("What is known");
    offer_glu(sub->add_option("--glu", texts_.from_glu, "contiguous or interleaved:K"));
    offer_glu(sub->add_option("--shared-glu", texts_.from_shared_glu, "the same for the shared expert"));
    offer_glu(sub->add_option("--optimizer-glu", texts_.from_optimizer_glu, "the same for the optimizer's state"));
    offer_namings(sub->add_option("--naming", texts_.from_naming, "the naming, where the keys fit several"));
    sub->option_defaults()->group("What is written");
    sub->add_flag("--dry-run", options_.stamp_dry_run, "say what would be written, and write nothing");
    sub->add_flag("--remove", options_.remove_stamp, "take the recorded layout out again");
    add_common(sub);
  }

  void add_layouts() {
    CLI::App* sub = add(Command::Layouts, "layouts", "the table of namings");
    examples(sub, {"layouts", "layouts qwen3", "layouts --json"});
    sub->add_option("WORD", options_.input, "only those with it in their name, model types or programs");
    add_json(sub);
  }

  void add_forward() {
    CLI::App* sub = add(Command::Forward, "forward", "run one layer's experts on given tokens");
    examples(sub, {"forward OUT --layer 0 --input x.safetensors --output y.safetensors"});
    sub->add_option("CKPT", options_.forward.checkpoint, "file or directory")->required();
    sub->option_defaults()->group("What is computed");
    sub->add_option("--layer", options_.forward.layer, "the layer, as `inspect` numbers it: 3, mtp.0")
        ->type_name("N")
        ->required();
    sub->add_option("--input", options_.forward.tokens,
                    "safetensors file with x [T, H], index [T, top_k] I64 and weights [T, top_k]")
        ->type_name("FILE")
        ->required();
    sub->add_option("--output", options_.forward.output, "safetensors file to write y [T, H] to")
        ->type_name("FILE")
        ->required();
    sub->add_flag("--overwrite", options_.forward.overwrite, "replace the output file");
    add_activation(sub, "What is computed");
    add_from(sub);
    sub->option_defaults()->group("Work");
    add_jobs(sub);
    add_size(sub, "--max-memory", texts_.max_memory, "bytes of weights read at a time");
    offer(sub->add_option("--device", options_.run.device, "auto, which is cpu; cpu, cuda or cuda:N"),
          hidden({{"auto"}, {"cpu"}, {"cuda"}, {"cuda:0"}}))
        ->type_name("DEVICE")
        ->default_str("auto");
    add_size(sub, "--device-memory", texts_.device_memory, "bytes of the buffers on a GPU");
    add_common(sub);
  }

  void add_bench() {
    CLI::App* bench = app_.add_subcommand("bench", "speeds, each beside this machine's own ceiling in the same run");
    examples(bench, {"bench convert --dir /scratch --size 4GiB", "bench kernels", "bench forward --device cpu"});
    bench->require_subcommand(1);
    CLI::App* kernels = add(Command::BenchKernels, "kernels", "the GPU's layout kernels beside cudaMemcpyAsync", bench);
    examples(kernels, {"bench kernels --device cuda:1"});
    offer(kernels->add_option("--device", options_.run.device, "cuda or cuda:N"), hidden({{"cuda"}, {"cuda:0"}}))
        ->type_name("DEVICE")
        ->default_str("cuda:0");
    add_json(kernels);
    std::vector<ValueWord> models;
    for (const ForwardShape& shape : forward_shapes()) models.push_back({shape.model});
    CLI::App* forward = add(Command::BenchForward, "forward",
                            "the grouped MLP beside cuBLAS, a plain read of the weights and a dense product", bench);
    examples(forward, {"bench forward --model Qwen3-30B --tokens 1,64", "bench forward --device cpu -j 8"});
    offer(forward->add_option("--device", options_.run.device, "cuda, cuda:N or cpu"),
          hidden({{"cuda"}, {"cuda:0"}, {"cpu"}}))
        ->type_name("DEVICE")
        ->default_str("cuda:0");
    one_of(forward->add_option("--model", options_.bench.model, "one shape alone"), models)
        ->type_name("MODEL")
        ->default_str("all; on the CPU Qwen3-30B");
    forward->add_option("--tokens", options_.bench.tokens, "per expert: 8, or 1,8,64")
        ->type_name("LIST")
        ->default_str("1,8,64,256,1024,4096; on the CPU 1,4,16")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 24));
    forward->add_option("--rounds", options_.bench.rounds, "rounds at most")
        ->type_name("N")
        ->default_str("11")
        ->check(CLI::Range(1, 1000));
    forward->add_flag("--backward", options_.bench.backward, "all gradients too, on a GPU");
    add_jobs(forward);
    add_size(forward, "--max-memory", texts_.max_memory, "bytes on the CPU; layers are cut to the experts that fit");
    add_json(forward);
    CLI::App* convert =
        add(Command::BenchConvert, "convert", "conversions beside a copy and a plain write of the same bytes", bench);
    examples(convert, {"bench convert --dir /scratch --size 4GiB"});
    convert->add_option("--dir", options_.bench.dir, "where to write; nothing is left there")
        ->type_name("DIR")
        ->default_str("here");
    add_size(convert, "--size", texts_.bench_size, "bytes of the checkpoint that is converted");
    add_jobs(convert);
    add_size(convert, "--max-memory", texts_.max_memory, "bytes of all buffers together");
    add_json(convert);
  }

  void add_doctor() {
    CLI::App* sub = add(Command::Doctor, "doctor", "device, filesystem and I/O paths in use, and why");
    examples(sub, {"doctor", "doctor /scratch --json"});
    sub->add_option("PATH", options_.input, "where a checkpoint would be written")->default_str("here");
    add_jobs(sub);
    add_json(sub);
  }

  /// Commands about the program itself: they need no Command, as they are answered here.
  void add_help() {
    CLI::App* help = app_.add_subcommand("help", "the options of a command, or the manual page");
    examples(help, {"help convert", "help bench kernels", "help --man >" + program_ + ".1"});
    std::vector<ValueWord> commands;
    for (const CLI::App* sub : app_.get_subcommands([](const CLI::App*) { return true; }))
      commands.push_back({sub->get_name(), "", false});
    offer(help->add_option("COMMAND", help_words_, "a command; `bench` has commands of its own"), commands);
    help->add_flag("--man", help_man_, "the manual page of all commands, for `man -l`");
    CLI::App* completion = app_.add_subcommand("completion", "a script that completes commands, options and values");
    examples(completion, {"completion bash >/etc/bash_completion.d/" + program_,
                          "completion zsh >/usr/local/share/zsh/site-functions/_" + program_,
                          "completion fish >~/.config/fish/completions/" + program_ + ".fish"});
    one_of(completion->add_option("SHELL", shell_, "the shell")->required(), {{"bash"}, {"zsh"}, {"fish"}});
  }

  std::string help_answer() const {
    if (!shell_.empty()) return completion_script(shell_, table());
    if (help_man_) return man_page(table(), GLU_CKPT_VERSION);
    const CLI::App* app = &app_;
    for (const std::string& word : help_words_) app = command_named(app, word);
    return help_text(table_of(app, notes_));
  }

  const CLI::App* command_named(const CLI::App* app, const std::string& word) const {
    std::vector<std::string> known;
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) {
      if (sub->get_name() == word) return sub;
      known.push_back(sub->get_name());
    }
    fail(ErrorCode::Usage, {}, "'{}' is not a command{}", word, suggestion(word, known));
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

  /// Returns the option that a mistyped one may have been.
  std::string hint(int argc, const char* const* argv) const {
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

  CLI::App app_;
  std::string program_;
  Options options_;
  /// The answers of whichever command runs experts.
  ExpertCompute compute_;
  OptionTexts texts_;
  CLI::Option* seed_ = nullptr;
  CLI::Option* tensors_ = nullptr;
  /// The command that was given; none where help is the answer.
  const CLI::App* command_ = nullptr;
  std::vector<std::string> help_words_;
  bool help_man_ = false;
  std::string shell_;
  ParserNotes notes_;
};

}  // namespace

CommandTable command_table(const std::string& program) { return Parser(program).table(); }

std::optional<Options> parse_options(int argc, const char* const* argv, const std::string& program) {
  return Parser(program).parse(argc, argv);
}

}  // namespace glu_ckpt::cli
