#include "cli/session.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {

int cmd_inspect(const Options& options) {
  const auto source = open_source(options.input);
  report::Inspection inspection{source.get(), nullptr, {}};
  const auto print = [&] {
    print_out(options.json ? report::inspection_json(inspection) + "\n" : report::inspection_text(inspection));
  };
  Recognition recognition;
  try {
    recognition = with_place(
        *source, [&] { return recognize(source->inventory(), source->hints(), source->record(), options.from); });
  } catch (const Error& error) {
    // What can be told is told all the same; the exit status is the problem's.
    inspection.problems.push_back(error.what());
    print();
    throw;
  }
  inspection.recognition = &recognition;
  inspection.problems = recognition.problems;
  print();
  return 0;
}

}  // namespace glu_ckpt::cli
