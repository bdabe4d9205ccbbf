#include "io/run_owner.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "support/both_systems.hpp"
#include "support/slug_of.hpp"
#include "support/staged_runs.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

/// A staging directory of a run that was killed, whose owner's file is then written as of another run.
class RunOwnerTest : public BothSystems {
 protected:
  void SetUp() override {
    BothSystems::SetUp();
    out_ = dir_ / "out";
    owner_ = dir_ / "out.partial" / RunOwner::kName;
    StagedDir killed(out_, false, StagedMode::Create, kAsked);
    killed.journal().append(bytes_of("done"));
    text_ = get_text(owner_);
    killed.keep();
  }

  /// Returns the text with the value of a line replaced.
  std::string with(const std::string& name, const std::string& value) const {
    const std::size_t at = text_.find(name + " "), end = text_.find('\n', at);
    return text_.substr(0, at) + name + " " + value + text_.substr(end);
  }
  void put_owner(const std::string& text) {
    (void)remove_own(owner_, Own::MadeHere);
    put_text(owner_, text);
  }
  std::string resume() {
    return slug_of([&] {
      StagedDir staged(out_, false, StagedMode::Resume, kAsked);
      EXPECT_EQ(texts_of(staged.journal()), std::vector<std::string>{"done"});
      staged.keep();
    });
  }
  std::string message(StagedMode mode) {
    try {
      const StagedDir staged(out_, false, mode, kAsked);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  fs::path out_, owner_;
  std::string text_;
};
GLU_CKPT_ON_BOTH(RunOwnerTest);

TEST_P(RunOwnerTest, NamesHostBootProcessAndStart) {
  for (const char* name : {"host ", "\nboot ", "\nprocess ", "\nticks ", "\nsince "})
    EXPECT_NE(text_.find(name), text_.npos) << text_;
  EXPECT_FALSE(path_exists(owner_)) << "a run that ends takes its name away";
}

/// Locks are of no use here: the other host's kernel has them.
TEST_P(RunOwnerTest, AnotherHostIsRefusedByNameUntilItIsDeclaredDead) {
  const std::size_t boot = text_.find("boot ");
  put_owner("host node-17\nboot of another kernel" + text_.substr(text_.find('\n', boot)));
  EXPECT_EQ(resume(), "output-busy");
  for (const StagedMode mode : {StagedMode::Create, StagedMode::Resume, StagedMode::Anew}) {
    const std::string what = message(mode);
    for (const std::string& part : {std::string("host node-17"), owner_.string(), std::string("--resume")})
      EXPECT_NE(what.find(part), what.npos) << what;
  }
  EXPECT_EQ(list_directory(dir_ / "out.partial").size(), 2u);
  (void)remove_own(owner_, Own::MadeHere);
  EXPECT_EQ(resume(), "none");
}

TEST_P(RunOwnerTest, AProcessThatEndedIsGoneOnFrom) {
  put_owner(with("process", "4194304"));
  EXPECT_EQ(resume(), "none");
  put_owner(with("ticks", "1"));
  EXPECT_EQ(resume(), "none");
  put_owner(with("boot", "before the last one"));
  EXPECT_EQ(resume(), "none");
}

TEST_P(RunOwnerTest, AProcessThatLivesIsRefused) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  std::ifstream stat(fmt::format("/proc/{}/stat", child));
  std::string line, ticks;
  std::getline(stat, line);
  std::istringstream fields(line.substr(line.rfind(')') + 2));
  for (int field = 3; field <= 22; ++field) fields >> ticks;
  text_ = with("ticks", ticks);
  put_owner(with("process", std::to_string(child)));
  EXPECT_EQ(resume(), "output-busy");
  EXPECT_NE(message(StagedMode::Create).find(fmt::format("process {}", child)), std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(resume(), "none");
}

/// A power cut may leave the name and lose the content, or the journal.
TEST_P(RunOwnerTest, AFileThatNamesNobodyIsNobodys) {
  for (const char* text : {"", "\n", "host", "host h\n", "\0\0\0"}) {
    put_owner(text);
    EXPECT_EQ(resume(), "none") << text;
  }
  put_owner(text_);
  (void)remove_own(dir_ / "out.partial" / kJournal, Own::MadeHere);
  EXPECT_EQ(slug_of([&] { StagedDir(out_, false, StagedMode::Resume, kAsked); }), "none");
}

/// In a source, by contrast, only what is a note of a run, whole or torn, is taken away.
TEST_P(RunOwnerTest, NoOtherFileOfASourceIsRemoved) {
  const fs::path source = dir_ / "source", note = source / RunOwner::kName;
  (void)make_directory(source);
  const auto own = [&] {
    return slug_of([&] { EXPECT_EQ(RunOwner(source, Owned::Source, "/disk/out").release(), 0); });
  };
  const std::string dead = with("process", "4194304");
  const std::vector<std::string> others = {"my own words\n",
                                           "a word\n" + dead,
                                           dead + "and more\n",
                                           "\n",
                                           "host a\tb\n",
                                           "host h\nprocess 4194304\n",
                                           dead + "output /out\nended 1\nended 2\n",
                                           std::string(5000, '\0')};
  for (const std::string& text : others) {
    put_text(note, text);
    EXPECT_EQ(own(), "source-needed") << text;
    EXPECT_EQ(get_text(note), text);
    (void)remove_own(note, Own::MadeHere);
  }
  (void)make_directory(note);
  EXPECT_EQ(own(), "source-needed");
  (void)remove_empty_directory(note);
  const std::string with_output = dead + "output /disk/out\n";
  for (std::size_t bytes = 0; bytes <= with_output.size(); ++bytes)
    for (const std::string& zeros : {std::string(), std::string(3, '\0')}) {
      put_text(note, with_output.substr(0, bytes) + zeros);
      EXPECT_EQ(own(), "none") << bytes;
      EXPECT_FALSE(path_exists(note));
    }
}

/// It stays where some of the source is gone, and keeps nobody out, not even on another host.
TEST_P(RunOwnerTest, ANoteThatStaysSaysWhereFilesWent) {
  const fs::path source = dir_ / "source", note = source / RunOwner::kName;
  (void)make_directory(source);
  EXPECT_EQ(RunOwner::why_missing(source, "Unknown."), "Unknown.");
  RunOwner owner(source, Owned::Source, "/disk/out");
  EXPECT_NE(RunOwner::why_missing(source).find("If it works no more"), std::string::npos);
  owner.leave();
  const std::string why = RunOwner::why_missing(source, "Unknown.");
  for (const char* part :
       {"/disk/out.partial (which is not seen from here)", "It stopped at 2", "--resume", "/disk/out"})
    EXPECT_NE(why.find(part), why.npos) << why;
  std::string text = get_text(note);
  text.replace(0, text.find("\nspace"), "host node-17\nboot of another kernel");
  (void)remove_own(note, Own::MadeHere);
  put_text(note, text);
  EXPECT_EQ(slug_of([&] { RunOwner::check_free(source, Owned::Source); }), "none");
  EXPECT_EQ(RunOwner(source, Owned::Source).release(), 0);
  EXPECT_FALSE(path_exists(note));
}

/// Whoever was declared dead and lives must not publish what another run writes.
TEST_P(RunOwnerTest, ARunThatLostItsPlaceCommitsNothing) {
  StagedDir staged(out_, false, StagedMode::Resume, kAsked);
  put_owner(with("host", "node-18"));
  EXPECT_EQ(slug_of([&] { staged.commit(); }), "io");
  EXPECT_FALSE(path_exists(out_));
  EXPECT_NE(get_text(owner_).find("node-18"), std::string::npos);
}

TEST_P(RunOwnerTest, NothingOfItStaysInAnOutput) {
  {
    StagedDir staged(out_, false, StagedMode::Resume, kAsked);
    put_text(staged.path() / "f", "1");
    EXPECT_TRUE(path_exists(owner_));
    staged.commit();
  }
  EXPECT_EQ(list_directory(out_), std::vector<std::string>{"f"});
  { const StagedDir dropped(dir_ / "other", false, StagedMode::Create, kAsked); }
  EXPECT_EQ(list_directory(dir_), std::vector<std::string>{"out"});
}

}  // namespace
}  // namespace glu_ckpt
