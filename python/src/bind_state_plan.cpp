/// StatePlan: conversions between tensors of any library, planned once.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <deque>

#include "borrowed_tensor.hpp"
#include "command.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/state_plan.hpp"
#include "tensor_ops.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace glu_ckpt::python {
namespace {

/// The tensors of one call. An item is a tensor, None, or a tuple that describes one: its address, or None where it has
/// a shape only, its dtype, shape, strides and device.
class TensorList {
 public:
  TensorList(const nb::list& items, const std::vector<std::string>& names, std::optional<std::int64_t> stream,
             bool written) {
    for (std::size_t i = 0; i < items.size(); ++i) add(items[i], names.at(i), stream, written);
  }

  const std::vector<TensorView>& views() const { return views_; }

 private:
  void add(nb::handle item, const std::string& name, std::optional<std::int64_t> stream, bool written) {
    if (item.is_none()) {
      views_.emplace_back();
    } else if (nb::isinstance<nb::tuple>(item)) {
      views_.push_back(described(nb::cast<nb::tuple>(item), name));
    } else {
      const BorrowedTensor& tensor = borrowed_.emplace_back(item, name, stream_for(item, stream));
      views_.push_back(written ? tensor.writable() : tensor.view());
    }
  }

  /// What is in host memory has no stream.
  static std::optional<std::int64_t> stream_for(nb::handle item, std::optional<std::int64_t> stream) {
    if (!stream || !nb::hasattr(item, "__dlpack_device__")) return std::nullopt;
    const auto device = nb::cast<nb::tuple>(item.attr("__dlpack_device__")());
    const int kind = nb::cast<int>(nb::int_(nb::object(device[0])));
    constexpr int kCpu = 1, kCudaHost = 3;
    return kind == kCpu || kind == kCudaHost ? std::nullopt : stream;
  }

  static TensorView described(const nb::tuple& item, const std::string& name) {
    TensorView view;
    if (!item[0].is_none()) view.data = reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(item[0]));
    const auto word = nb::cast<std::string>(item[1]);
    const auto dtype = dtype_from_name(word);
    if (!dtype) fail(ErrorCode::NotSupported, {{}, name}, "'{}': its dtype '{}' is none of safetensors'", name, word);
    view.dtype = *dtype;
    view.shape = nb::cast<std::vector<i64>>(item[2]);
    view.strides = nb::cast<std::vector<i64>>(item[3]);
    view.device = nb::cast<std::string>(item[4]);
    return view;
  }

  /// Their addresses stay as the list grows.
  std::deque<BorrowedTensor> borrowed_;
  std::vector<TensorView> views_;
};

std::vector<NamedTensor> named_tensors(const std::vector<std::string>& names, const TensorList& list) {
  std::vector<NamedTensor> named;
  for (std::size_t i = 0; i < names.size(); ++i) named.push_back({names[i], list.views().at(i)});
  return named;
}

std::string state_digest(const std::vector<std::string>& names, const nb::list& tensors, const nb::list& words,
                         std::string config, std::map<std::string, std::string> record,
                         std::optional<std::int64_t> stream) {
  const TensorList list(tensors, names, stream, false);
  const SourceAnswers answers = parse_command(texts_of(words)).from;
  const nb::gil_scoped_release without_gil;
  return to_string(digest_state(named_tensors(names, list), {std::move(config), std::move(record)}, answers));
}

class PyStatePlan {
 public:
  PyStatePlan(std::vector<std::string> names, const nb::list& tensors, const nb::list& words, std::string config,
              std::map<std::string, std::string> record, std::pair<std::int64_t, std::int64_t> first,
              std::optional<std::int64_t> stream)
      : names_(std::move(names)) {
    const TensorList list(tensors, names_, stream, false);
    const ConvertOptions options = parse_command(texts_of(words)).convert;
    const std::vector<NamedTensor> named = named_tensors(names_, list);
    for (const NamedTensor& tensor : named) dtypes_.push_back(tensor.view.dtype);
    const nb::gil_scoped_release without_gil;
    const StateFacts facts{std::move(config), std::move(record), first.first, first.second};
    plan_ = std::make_unique<StatePlan>(named, facts, options);
    for (const OutputTensor& output : plan_->plan().outputs) output_names_.push_back(output.name);
  }

  /// Name, dtype, shape, bytes, the number of the input that it renames or None, that of the first input that goes into
  /// it, and whether that one has its dtype.
  nb::list outputs() const {
    const Plan& plan = plan_->plan();
    std::vector<std::optional<std::size_t>> renamed(plan.outputs.size());
    for (const Renamed& same : plan_->renamed()) renamed[same.output] = same.input;
    nb::list all;
    for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
      const OutputTensor& output = plan.outputs[t];
      const std::size_t first = plan_->first_input(t);
      all.append(nb::make_tuple(output.name, std::string(dtype_name(output.dtype)), nb::tuple(nb::cast(output.shape)),
                                output.bytes, renamed[t], first, dtypes_.at(first) == output.dtype));
    }
    return all;
  }

  void run(const nb::list& tensors, const nb::list& outs, std::optional<std::int64_t> stream, int jobs) const {
    const TensorList from(tensors, names_, stream, false), to(outs, output_names_, stream, true);
    const nb::gil_scoped_release without_gil;
    plan_->run(from.views(), to.views(), {jobs, stream_of(stream)});
  }

  std::string to_json() const { return plan_->to_json(); }
  std::vector<std::string> dropped() const { return plan_->dropped(); }
  std::vector<std::string> notes() const { return plan_->plan().notes; }

 private:
  std::vector<std::string> names_;
  std::vector<Dtype> dtypes_;
  std::vector<std::string> output_names_;
  std::unique_ptr<StatePlan> plan_;
};

}  // namespace

void bind_state_plan(nb::module_& module) {
  nb::class_<PyStatePlan>(module, "StatePlan", "A conversion between state dicts of these names, dtypes and shapes.")
      .def(nb::init<std::vector<std::string>, const nb::list&, const nb::list&, std::string,
                    std::map<std::string, std::string>, std::pair<std::int64_t, std::int64_t>,
                    std::optional<std::int64_t>>(),
           "names"_a, "tensors"_a, "words"_a, "config"_a, "record"_a, "first"_a, "stream"_a.none())
      .def("outputs", &PyStatePlan::outputs,
           "(name, dtype, shape, bytes, number of the input that it renames or None, number of the first input that "
           "goes "
           "into it, whether that one has its dtype) of each.")
      .def("run", &PyStatePlan::run, "tensors"_a, "outs"_a, "stream"_a.none(), "jobs"_a,
           "Fills `outs`, in the order of outputs(); None is not made.")
      .def("to_json", &PyStatePlan::to_json, "Which bytes go where.")
      .def("dropped", &PyStatePlan::dropped, "Inputs that go nowhere.")
      .def("notes", &PyStatePlan::notes, "Sentences that the user should know.");
  module.def("state_digest", &state_digest, "names"_a, "tensors"_a, "words"_a, "config"_a, "record"_a,
             "stream"_a.none(), "The digest of these tensors, as of the file that holds them.");
}

}  // namespace glu_ckpt::python
