/// The page from top to bottom: what it is, what loads it, its bytes, its rows, its experts, and what differs.

#include "glu_ckpt/html_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "core/readable.hpp"
#include "glu_ckpt/expert_norms.hpp"
#include "glu_ckpt/explain_layout.hpp"
#include "glu_ckpt/model.hpp"
#include "glu_ckpt/verify_forward.hpp"
#include "report/html/html_text.hpp"
#include "report/html/pictures.hpp"

namespace glu_ckpt {
namespace {

/// So many tensors are listed, the largest differences first; `diff -v` lists all.
constexpr std::size_t kMostTensors = 500;
/// So many of them are seen at once; the others are folded. Links from the first sentence lead to what is seen.
constexpr std::size_t kSeenTensors = 25;

/// One side of the page.
struct PageSide {
  std::string path;
  Inspection inspection;
};

std::string paragraphs(const std::vector<std::string>& sentences, std::string_view word) {
  std::string text;
  for (const std::string& sentence : sentences)
    text += fmt::format("<p class=\"warn\"><strong>{}:</strong> {}</p>\n", word, html(sentence));
  return text;
}

std::string joined(const std::set<std::string>& words) { return html(fmt::format("{}", fmt::join(words, ", "))); }

/// Sizes of the routed experts; several where layers differ.
template <typename Size>
std::string sizes(const Inspection& inspection, const Size& size) {
  std::set<std::string> found;
  if (inspection.recognition)
    for (const ExpertBlock& block : inspection.recognition->blocks)
      if (block.set == ExpertSet::Routed && !block.is_optimizer_state()) found.insert(fmt::format("{}", size(block)));
  return found.empty() ? "" : joined(found);
}

std::string number_or_nothing(i64 number) { return number > 0 ? fmt::format("{}", number) : std::string(); }

/// "30.53 billion"
std::string count_text(const std::optional<i64>& count) {
  if (!count) return {};
  constexpr std::pair<double, std::string_view> kUnits[] = {{1e12, " trillion"}, {1e9, " billion"}, {1e6, " million"}};
  for (const auto& [unit, word] : kUnits)
    if (const double amount = static_cast<double>(*count) / unit; amount >= 1)
      return fmt::format("{:.2f}{}", amount, word);
  return fmt::format("{}", *count);
}

std::string layout_text(const Inspection& inspection) {
  if (!inspection.recognition) return "not recognized";
  const LayoutAnswers& layout = inspection.recognition->layout;
  const bool has_experts = !inspection.recognition->blocks.empty();
  if (!has_experts && !layout.is_dense() && !inspection.recognition->is_adapter) return "no experts";
  std::string text = explain_layout(layout);
  if (has_experts && !inspection.recognition->is_adapter)
    text +=
        fmt::format("; gate and up known from {}", layout.glu_source == "none"           ? "nothing"
                                                   : layout.glu_source.ends_with(".txt") ? layout.glu_source
                                                                                         : "the " + layout.glu_source);
  return html(text);
}

std::string loaders_text(const LoadsIn& found) {
  if (found.loaders.empty()) return (found.is_unknown ? "unknown: " : "nothing as it is: ") + html(found.why_none);
  std::string text;
  for (const Loader& loader : found.loaders)
    text += fmt::format("{}{}, {}{}", text.empty() ? "" : "<br>", html(loader.program), html(loader.versions),
                        loader.flags.empty() ? "" : ", " + html_name(loader.flags));
  return text;
}

/// Lists the changes besides the layout that a run of this program made and noted in the record.
std::string history_text(const PageSide& side) {
  constexpr std::pair<std::string_view, std::string_view> kChanges[] = {{"merged", "an adapter was merged"},
                                                                        {"filled", "filled in"},
                                                                        {"filled_from", "filled from"},
                                                                        {"part", "a part"},
                                                                        {"padded_from", "padded from"},
                                                                        {"dtypes", "cast"},
                                                                        {"rounded", "rounded"},
                                                                        {"decoded_from", "decoded from"},
                                                                        {"encoded_as", "encoded as"},
                                                                        {"encode_error", "with errors"}};
  const Record& record = side.inspection.source->record();
  std::string text;
  for (const auto& [key, words] : kChanges)
    if (const auto found = record.find(std::string(key)); found != record.end())
      text += fmt::format("{}{}: {}", text.empty() ? "" : "<br>", words, html(found->second));
  return text;
}

i64 moe_layers(const Inspection& inspection) {
  const auto layers = layer_contents(inspection);
  return std::ranges::count_if(
      layers, [](const LayerContent& layer) { return layer.num_experts > 0 && !layer.layer.starts_with("mtp"); });
}

/// Rows are equal for both sides, or marked; empty ones are left out.
std::string summary_table(const std::vector<const PageSide*>& sides) {
  std::string rows, equal;
  const auto add = [&](std::string_view heading, const auto& cell) {
    std::vector<std::string> cells;
    cells.reserve(sides.size());
    for (const PageSide* side : sides) cells.push_back(cell(*side));
    if (std::ranges::all_of(cells, [](const std::string& text) { return text.empty(); })) return;
    for (std::string& text : cells)
      if (text.empty()) text = "unknown";
    const bool alike = cells.size() > 1 && cells[0] == cells[1];
    (alike ? equal : rows) += table_row(heading, alike ? std::vector{cells[0]} : cells);
  };
  add("path", [](const PageSide& side) { return html_name(side.path); });
  add("format", [](const PageSide& side) { return html(to_string(side.inspection.source->format())); });
  add("layout", [](const PageSide& side) { return layout_text(side.inspection); });
  add("parameters", [](const PageSide& side) {
    const ModelSize& size = side.inspection.size;
    return count_text(size.parameters) +
           (size.active_parameters ? fmt::format(", {} for each token", count_text(size.active_parameters)) : "");
  });
  add("digest, as recorded", [](const PageSide& side) {
    const auto recorded = side.inspection.source->record().find("digest");
    return recorded == side.inspection.source->record().end() ? std::string() : html_name(recorded->second);
  });
  add("what was done to it, as recorded", [](const PageSide& side) { return history_text(side); });
  add("layers", [](const PageSide& side) {
    const i64 layers = side.inspection.size.layers, moe = moe_layers(side.inspection);
    if (moe == 0) return layers == 0 ? std::string() : fmt::format("{}, none with experts", layers);
    return layers == 0 ? fmt::format("{} with experts", moe) : fmt::format("{}, {} with experts", layers, moe);
  });
  add("experts", [](const PageSide& side) {
    const std::string all = sizes(side.inspection, [](const ExpertBlock& block) { return block.num_experts; });
    const i64 chosen = side.inspection.size.experts_per_token;
    return all.empty() || chosen == 0 ? all : fmt::format("{}, {} for each token", all, chosen);
  });
  add("hidden size H", [](const PageSide& side) {
    const std::string own = sizes(side.inspection, [](const ExpertBlock& block) { return block.hidden_size; });
    return own.empty() ? number_or_nothing(side.inspection.size.hidden) : own;
  });
  add("width of an expert F", [](const PageSide& side) {
    return sizes(side.inspection, [](const ExpertBlock& block) { return block.intermediate_size; });
  });
  add("width of a dense MLP", [](const PageSide& side) { return number_or_nothing(side.inspection.size.dense_width); });
  add("attention", [](const PageSide& side) { return html(side.inspection.size.attention); });
  add("vocabulary", [](const PageSide& side) { return number_or_nothing(side.inspection.size.vocabulary); });
  add("tensors",
      [](const PageSide& side) { return fmt::format("{}", side.inspection.source->inventory().tensors.size()); });
  add("files", [](const PageSide& side) {
    return fmt::format("{}, {}", side.inspection.source->inventory().files.size(),
                       size_text(side.inspection.source->file_bytes()));
  });
  add("quantized", [](const PageSide& side) {
    return side.inspection.quantized.empty() ? std::string("no")
                                             : html(fmt::format("{}", fmt::join(side.inspection.quantized, ", ")));
  });
  add("loads in", [](const PageSide& side) { return loaders_text(side.inspection.loads_in); });
  std::vector<std::string> headings = {"what"};
  for (std::size_t i = 0; i < sides.size(); ++i)
    headings.emplace_back(sides.size() == 1 ? "checkpoint" : i == 0 ? "A" : "B");
  std::string text = rows.empty() ? "" : table("What it is", headings, rows, "silent");
  if (!equal.empty()) text += table("The same in A and B", {"what", "A and B"}, equal);
  return text;
}

std::string byte_tables(const std::vector<const PageSide*>& sides) {
  std::string text;
  for (const auto& [caption, what, count] :
       {std::tuple("By dtype", "dtype", &bytes_by_dtype), std::tuple("By kind", "kind", &bytes_by_kind),
        std::tuple("By layer", "layer", &bytes_by_layer)}) {
    const ByteCounts a = count(sides.front()->inspection);
    const ByteCounts b = count(sides.back()->inspection);
    text += byte_table(caption, what, a, sides.size() > 1 ? &b : nullptr);
  }
  return text;
}

/// A picture for each order that occurs among the layers of a side, routed and shared; one for both sides where they
/// have the same.
std::string pictures(const std::vector<const PageSide*>& sides) {
  struct Picture {
    std::string what, whose;
    ExpertBlock block;
  };
  std::vector<Picture> found;
  for (const PageSide* side : sides) {
    if (!side->inspection.recognition) continue;
    const std::string whose = side == sides.front() ? "A" : "B";
    const auto add = [&](const std::string& what, const ExpertBlock& block) {
      const auto same = std::ranges::find_if(found, [&](const Picture& other) {
        return other.what == what && picture_sentence(other.block) == picture_sentence(block);
      });
      if (same == found.end())
        found.push_back({what, whose, block});
      else if (same->whose == "A" && whose == "B")
        same->whose = "A and B";
    };
    if (const LayoutAnswers& layout = side->inspection.recognition->layout;
        layout.is_dense() && side->inspection.size.dense_width > 0) {
      ExpertBlock dense;
      dense.intermediate_size = side->inspection.size.dense_width;
      dense.glu = layout.glu;
      add("the MLP of a dense model", dense);
    }
    for (const ExpertBlock& block : side->inspection.recognition->blocks)
      if (!block.is_optimizer_state()) add(block.set == ExpertSet::Routed ? "routed experts" : "shared expert", block);
  }
  std::string text;
  for (std::size_t i = 0; i < found.size(); ++i)
    text += row_picture(found[i].block, (sides.size() == 1 ? "" : found[i].whose + ", ") + found[i].what,
                        fmt::format("rows{}", i));
  return text.empty() ? "<p>No experts and no gated MLP were recognized.</p>\n" : text;
}

/// Labels of the layers that have routed experts, in the order of the model, and how many.
std::vector<HeatRow> empty_rows(const Inspection& inspection, double value) {
  std::vector<HeatRow> rows;
  for (const LayerContent& layer : layer_contents(inspection))
    if (layer.num_experts > 0)
      rows.push_back({layer.layer, std::vector<double>(static_cast<std::size_t>(layer.num_experts), value)});
  return rows;
}

HeatRow* row_of(std::vector<HeatRow>& rows, const std::string& layer) {
  const auto found = std::ranges::find(rows, layer, &HeatRow::layer);
  return found == rows.end() ? nullptr : &*found;
}

HeatFigure norm_figure(const PageSide& side, const SourceAnswers& answers, const RunOptions& run,
                       std::string_view title) {
  HeatFigure figure{.title = std::string(title),
                    .about =
                        "The root of the sum of the squares of an expert's weights: gate, up and down together. "
                        "It is the same in every layout.",
                    .rows = empty_rows(side.inspection, std::numeric_limits<double>::quiet_NaN())};
  bool any = false;
  for (const LayerNorms& layer : expert_norms(side.path, answers, run))
    if (HeatRow* const row = row_of(figure.rows, layer.layer)) {
      std::copy_n(layer.norms.begin(), std::min(layer.norms.size(), row->values.size()), row->values.begin());
      any |= std::ranges::any_of(layer.norms, [](double norm) { return !std::isnan(norm); });
    }
  if (!any) figure.about += " These weights are quantized, so there is none; --decode bf16 gives them.";
  return figure;
}

/// A figure of all that differs of an expert.
struct Measure {
  std::string_view title;
  std::string_view about;
  double (*value)(const ElementDiff&);
};

constexpr Measure kMeasures[] = {
    {"Largest difference", "The largest absolute difference of an element between A and B",
     [](const ElementDiff& found) { return found.max_abs; }},
    {"RMS of the difference", "The root of the mean of the squared difference of an element between A and B",
     [](const ElementDiff& found) { return found.rms(); }},
    {"Relative norm", "The norm of A - B over the norm of A",
     [](const ElementDiff& found) { return found.relative_norm(); }},
    {"1 - cosine", "What the cosine of the angle between A and B lacks to 1: 0 where they have one direction",
     [](const ElementDiff& found) { return 1 - found.cosine(); }}};

/// Where only some tensors were compared, what did not differ may not have been compared.
HeatFigure difference_figure(const PageSide& side, const Diff& diff, bool is_of_some, const Measure& measure) {
  HeatFigure figure{
      .title = std::string(measure.title),
      .about = fmt::format("{}, over what differs of an expert's gate, up and down, biases and optimizer "
                           "state included. Hatched: only in one of them, with a NaN in only one, or without numbers.",
                           measure.about),
      .rows = empty_rows(side.inspection, 0),
      .is_difference = true};
  if (is_of_some)
    figure.about += " Only some tensors were compared; an expert without a difference in them is hatched, too.";
  std::map<const double*, ElementDiff> sums;
  for (const TensorDiff& tensor : diff.tensors) {
    HeatRow* const row = tensor.expert >= 0 ? row_of(figure.rows, tensor.layer) : nullptr;
    if (row == nullptr || tensor.expert >= std::ssize(row->values)) continue;
    double& value = row->values[static_cast<std::size_t>(tensor.expert)];
    ElementDiff& sum = sums[&value];
    if (!tensor.elements || !tensor.has_numbers || tensor.elements->nan_in_one > 0 || std::isnan(value)) {
      value = std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    append(sum, *tensor.elements);
  }
  for (HeatRow& row : figure.rows)
    for (double& value : row.values)
      if (const auto sum = sums.find(&value); sum != sums.end() && !std::isnan(value))
        value = measure.value(sum->second);
  if (is_of_some)
    for (HeatRow& row : figure.rows)
      for (double& value : row.values)
        if (!sums.contains(&value)) value = std::numeric_limits<double>::quiet_NaN();
  return figure;
}

HeatFigure forward_figure(const PageSide& side, const std::vector<LayerForward>& layers) {
  HeatFigure figure{.title = "Forward error",
                    .about =
                        "The largest absolute difference of what an expert of A and of B computes on the same "
                        "seeded tokens.",
                    .rows = empty_rows(side.inspection, std::numeric_limits<double>::quiet_NaN()),
                    .is_difference = true};
  for (const LayerForward& layer : layers)
    if (HeatRow* const row = layer.set == to_string(ExpertSet::Routed) ? row_of(figure.rows, layer.layer) : nullptr)
      std::copy_n(layer.expert_max_abs.begin(), std::min(layer.expert_max_abs.size(), row->values.size()),
                  row->values.begin());
  return figure;
}

std::string number(bool is_there, double value) { return is_there ? fmt::format("{:.3g}", value) : "none"; }

/// Cosines near 1 need more digits.
std::string cosine(bool is_there, double value) {
  return is_there && !std::isnan(value) ? fmt::format("{:.6g}", value) : "none";
}

std::string layer_rows(const Diff& diff) {
  std::string rows;
  for (const LayerDiff& layer : diff.layers)
    rows += table_row(layer.layer.empty() ? "no layer" : html(layer.layer),
                      {layer.numbers.nan_in_one > 0 ? "nan" : number(layer.numbers.elements > 0, layer.numbers.max_abs),
                       number(layer.numbers.elements > 0, layer.numbers.rms()),
                       number(layer.changed.elements > 0, layer.changed.relative_norm()),
                       cosine(layer.changed.elements > 0, layer.changed.cosine()),
                       fmt::format("{} of {}", layer.differing, layer.tensors),
                       fmt::format("{} of {}", layer.differing_elements, layer.elements),
                       fmt::format("{}", layer.only_in_one), fmt::format("{}", layer.unlike)});
  return rows;
}

std::string form_text(Dtype dtype, const std::vector<i64>& shape) {
  return fmt::format("{} {}", dtype_name(dtype), shape_text(shape));
}

std::string what_differs(const TensorDiff& tensor) {
  if (tensor.only_in) return *tensor.only_in == Side::A ? "only in A" : "only in B";
  if (tensor.dtype_a != tensor.dtype_b || tensor.shape_a != tensor.shape_b)
    return fmt::format("{} in A, {} in B", form_text(tensor.dtype_a, tensor.shape_a),
                       form_text(tensor.dtype_b, tensor.shape_b));
  return form_text(tensor.dtype_a, tensor.shape_a);
}

std::string first_place(const TensorDiff& tensor) {
  if (!tensor.first) return "";
  const auto value = [](const std::string& shown, const std::string& bits) { return shown.empty() ? bits : shown; };
  return html(fmt::format("[{}, {}]: {} in A, {} in B", tensor.first->row, tensor.first->column,
                          value(tensor.first->number_a, tensor.first->a),
                          value(tensor.first->number_b, tensor.first->b)));
}

/// A row for each of diff.tensors[first, last).
std::string tensor_rows(const Diff& diff, const std::set<std::size_t>& linked, std::size_t first, std::size_t last) {
  std::string rows;
  for (std::size_t index = first; index < last; ++index) {
    const TensorDiff& tensor = diff.tensors[index];
    const ElementDiff found = tensor.elements.value_or(ElementDiff());
    rows += table_row(html_name(tensor.name),
                      {number(tensor.has_numbers, found.max_abs), number(tensor.has_numbers, found.rms()),
                       number(tensor.has_numbers, found.relative_norm()), cosine(tensor.has_numbers, found.cosine()),
                       tensor.elements ? fmt::format("{} of {}", found.differing, found.elements) : "none",
                       html(what_differs(tensor)), first_place(tensor)},
                      linked.contains(index) ? fmt::format("id=\"tensor{}\"", index) : "");
  }
  return rows;
}

std::string verdict_sentence(const Diff& diff) {
  if (diff.equal)
    return fmt::format("<p class=\"verdict\">Equal: the same {} matrices and tensors, {}.</p>\n", diff.compared,
                       size_text(diff.bytes));
  const auto only = std::ranges::count_if(diff.tensors, [](const TensorDiff& one) { return one.only_in.has_value(); });
  std::string text = fmt::format("<p class=\"verdict\">Different: {} of {} matrices and tensors differ",
                                 std::ssize(diff.tensors) - only, diff.compared);
  if (only > 0) text += fmt::format(", {} {} only in one", only, only == 1 ? "is" : "are");
  if (diff.equal_layers > 0)
    text += fmt::format(
        "; {}", diff.equal_layers == 1 ? "1 layer is equal" : fmt::format("{} layers are equal", diff.equal_layers));
  text += ".</p>\n";
  std::string named;
  for (const ChangedPart& one : far_off(diff.tensors)) {
    const std::string what = html(one.name);
    named += fmt::format(
        "{}{}, {}", named.empty() ? "" : "; ",
        one.tensor < kMostTensors ? fmt::format("<a href=\"#tensor{}\">{}</a>", one.tensor, what) : what,
        one.numbers.nan_in_one > 0
            ? fmt::format("{} NaN in only one of A and B", one.numbers.nan_in_one)
            : fmt::format("relative norm {:.3g}, {:.3g} times that of most", one.numbers.relative_norm(), one.times));
  }
  return named.empty() ? text : text + "<p>What stands out: " + named + ".</p>\n";
}

std::string difference_tables(const Diff& diff) {
  const std::vector<std::string> headings = {"name",   "max abs",  "RMS",  "relative norm",
                                             "cosine", "elements", "form", "first difference"};
  const std::size_t listed = std::min(diff.tensors.size(), kMostTensors);
  std::size_t seen = std::min(listed, kSeenTensors);
  std::set<std::size_t> linked;
  for (const ChangedPart& one : far_off(diff.tensors))
    if (one.tensor < kMostTensors) {
      linked.insert(one.tensor);
      seen = std::max(seen, one.tensor + 1);
    }
  std::string text = table("Layers that differ, the largest difference first",
                           {"layer", "max abs", "RMS", "relative norm", "cosine", "matrices and tensors", "elements",
                            "only in one", "of another dtype or shape"},
                           layer_rows(diff), "numbers");
  text += table("Matrices and tensors that differ, the largest difference first", headings,
                tensor_rows(diff, linked, 0, seen), "numbers tensors");
  if (listed > seen)
    text += fmt::format("<details><summary>{} more that differ</summary>\n", listed - seen) +
            table("Matrices and tensors that differ, continued", headings, tensor_rows(diff, linked, seen, listed),
                  "numbers tensors") +
            "</details>\n";
  if (diff.tensors.size() > kMostTensors)
    text += fmt::format("<p>And {} more: <code>glu-ckpt diff A B -v</code> lists all.</p>\n",
                        diff.tensors.size() - kMostTensors);
  return text;
}

std::string section(std::string_view id, std::string_view title, const std::string& content) {
  return fmt::format("<section aria-labelledby=\"{}\"><h2 id=\"{}\">{}</h2>\n{}</section>\n", id, id, title, content);
}

std::string page(const std::string& title, const std::string& made_by, const std::string& content) {
  std::string text =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      // Whatever a checkpoint's names say, nothing is run and nothing is fetched.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      title + "</title>\n<style>";
  text += page_style();
  return text + "</style></head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the content</a>\n<header><h1>" +
         title + "</h1>\n<p class=\"made\">glu-ckpt " + GLU_CKPT_VERSION +
         (made_by.empty() ? "" : ", " + html(made_by)) + "</p></header>\n<main id=\"main\">\n" + content +
         "</main>\n<footer><p>Made by glu-ckpt " + GLU_CKPT_VERSION +
         ". It needs no other file.</p></footer>\n</body></html>\n";
}

std::string last_name(const std::filesystem::path& path) {
  const std::filesystem::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
  return html(name.empty() ? path.string() : name.string());
}

}  // namespace

HtmlReport html_report(const std::filesystem::path& path_a, const std::optional<std::filesystem::path>& path_b,
                       const HtmlReportOptions& options, const RunOptions& run) {
  HtmlReport report;
  const PageSide a{path_a.string(), inspect(path_a, options.a)};
  std::optional<PageSide> b;
  if (!path_b && run.observer != nullptr)
    for (const std::string& warning : a.inspection.source->info().warnings) run.observer->warn(warning);
  if (path_b) b.emplace(PageSide{path_b->string(), inspect(*path_b, options.b)});
  std::vector<const PageSide*> sides = {&a};
  if (b) sides.push_back(&*b);
  std::vector<HeatFigure> figures;
  if (path_b) {
    report.diff = diff(path_a, *path_b, {options.a, options.b, options.tensors}, run);
    for (const Measure& measure : kMeasures)
      figures.push_back(difference_figure(a, *report.diff, !options.tensors.empty(), measure));
    if (options.forward) {
      VerifyOptions forward;
      forward.a = options.a;
      forward.b = options.b;
      forward.compute = options.compute;
      figures.push_back(forward_figure(a, verify_forward(path_a, *path_b, forward, run)));
    }
  }
  if (a.inspection.recognition)
    figures.push_back(norm_figure(a, options.a, run, b ? "Norm of the weights of A" : "Norm of the weights"));
  if (b && b->inspection.recognition) figures.push_back(norm_figure(*b, options.b, run, "Norm of the weights of B"));
  std::erase_if(figures, [](const HeatFigure& figure) { return figure.rows.empty(); });

  std::string content;
  if (report.diff)
    content += fmt::format("<p>A is {}, B is {}.</p>\n", html_name(a.path), html_name(b->path)) +
               verdict_sentence(*report.diff);
  for (const PageSide* side : sides)
    content += paragraphs(side->inspection.warnings, "Warning") + paragraphs(side->inspection.problems, "Problem");
  content += section("summary", "What it is, and what loads it", summary_table(sides));
  content += section("rows", "How the rows of FC1 lie", pictures(sides));
  if (!figures.empty())
    content += section(
        "experts", "Experts by layer",
        heat_maps(figures) + (b && !options.forward ? "<p>The forward error was not computed; <code>--forward</code> "
                                                      "runs the experts of both.</p>\n"
                                                    : ""));
  content += section("bytes", "Bytes", byte_tables(sides));
  if (report.diff && !report.diff->equal)
    content += section("differences", "What differs, in numbers", difference_tables(*report.diff));
  report.html =
      page(b ? last_name(path_a) + " and " + last_name(*path_b) : last_name(path_a), options.made_by, content);
  return report;
}

}  // namespace glu_ckpt
