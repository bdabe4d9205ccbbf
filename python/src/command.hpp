#pragma once
/// The program's commands, as functions that Python calls.

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "cli/options.hpp"

namespace glu_ckpt::python {

/// Returns the text in `bytes`. Throws ValueError for a NUL, as Python's open() does: the system ends a path there.
std::string text_of(const nanobind::bytes& bytes);
std::vector<std::string> texts_of(const nanobind::list& words);

/// The options that `words` spell, the program's name not included. Throws what the command line's parser throws.
cli::Options parse_command(const std::vector<std::string>& words);

/// Runs the command that `words` spell, the program's name not included, with --json, and returns what it prints. It
/// runs on a thread of its own; everything that is Python happens on the caller's: `on_progress` gets a dict with the
/// fields of --progress json, or is None; `on_warning` gets a sentence, before the work. Where one of them raises, or a
/// signal handler does, the command is stopped resumably and that is raised. Failures are glu_ckpt.Error.
std::string run_command(std::vector<std::string> words, nanobind::object on_progress, nanobind::object on_warning);

}  // namespace glu_ckpt::python
