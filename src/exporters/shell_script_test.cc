// Launch scripts: what bash would hand to the program. Each expectation was checked with bash itself.
#include "exporters/shell_script.h"

#include <gtest/gtest.h>

#include "exporters/launch_command.h"

namespace fivefold {
namespace {

using Words = std::vector<std::string>;

ShellScript read(const std::string& text, const std::map<std::string, std::string>& environment = {}) {
  Result<ShellScript> script = read_shell_script(text, "run.sh", environment);
  EXPECT_TRUE(script.ok()) << script.error().message();
  return script.ok() ? *script : ShellScript{};
}

Words last(const ShellScript& script) { return script.commands.empty() ? Words{} : script.commands.back().words; }

TEST(ShellScript, ExpandsArraysAndSplitsWhatIsNotQuoted) {
  EXPECT_EQ(last(read("A=(--x 1 # one\n  \"--y 2\" '--z  3')\nA+=(--w)\nrun ${A[@]} \"${A[@]}\"\n")),
            (Words{"run", "--x", "1", "--y", "2", "--z", "3", "--w", "--x", "1", "--y 2", "--z  3", "--w"}));
  EXPECT_EQ(last(read("O=\" --a 1 \\\n  --b 2\"\nrun $O \"$O\"\n")),
            (Words{"run", "--a", "1", "--b", "2", " --a 1   --b 2"}));
  EXPECT_EQ(last(read("run \"${NONE[@]:-}\" \"$@\" ''\n")), (Words{"run", "", ""}));
}

TEST(ShellScript, KnowsDefaultsAndArithmetic) {
  EXPECT_EQ(last(read("N=${NODES:-4}\nG=8\nrun $(($G*$N)) $((G * (N + 1) % 7)) ${N:+set} ${M:=5} $M\n")),
            (Words{"run", "32", "5", "set", "5", "5"}));
  EXPECT_EQ(last(read("run $((1/0)) $((9223372036854775807+1))\n")),
            (Words{"run", "$((1/0))", "$((9223372036854775807+1))"}));
}

TEST(ShellScript, KeepsTheNameOfWhatIsNotSet) {
  const ShellScript script = read("run --nnodes $NODES --data $2 $(hostname)\n", {{"2", "text"}});
  EXPECT_EQ(last(script), (Words{"run", "--nnodes", "$NODES", "--data", "text", "$(hostname)"}));
  EXPECT_EQ(script.unset, (Words{"NODES"}));
}

TEST(ShellScript, TakesTheBranchThatHolds) {
  const std::string text =
      "if [[ \"$D\" == \"fp8\" ]] || [ -z \"$D\" ]; then\n  A=yes\nelif [ $D -gt 3 ]; then A=more; else\n  A=no\nfi\n"
      "case $D in\n 5) B=five ;;\n fp*|x) B=float ;;\n *) B=other;;\nesac\n[ -n \"$D\" ] && C=set\nrun $A $B $C\n";
  EXPECT_EQ(last(read(text, {{"D", "fp8"}})), (Words{"run", "yes", "other", "set"}));
  EXPECT_EQ(last(read(text, {{"D", "5"}})), (Words{"run", "more", "five", "set"}));
  EXPECT_EQ(last(read(text, {{"D", "2"}})), (Words{"run", "no", "other", "set"}));
  EXPECT_EQ(last(read("if [ ! -f x ]; then exit 1; fi\nfor i in 7 8; do run $i; done\n")), (Words{"run", "7"}));
}

TEST(ShellScript, KeepsDocumentsByTheirFile) {
  const ShellScript script =
      read("M=4\ncat <<EOT > ds.json\n{\"m\": $M}\nEOT\ncat > raw <<'E'\n$M\nE\nrun 2>&1 | tee log\n");
  EXPECT_EQ(script.documents.at("ds.json"), "{\"m\": 4}\n");
  EXPECT_EQ(script.documents.at("raw"), "$M\n");
}

TEST(ShellScript, SaysWhereItIsWrong) {
  const auto problem = [](const std::string& text) {
    const Result<ShellScript> script = read_shell_script(text, "run.sh", {});
    return script.ok() ? std::string() : script.error().message();
  };
  EXPECT_EQ(problem("a\nb \"x\n"), "run.sh:2: a double quote that does not end");
  EXPECT_EQ(problem("A=(1\n2"), "run.sh:1: the list A=( does not end");
  EXPECT_EQ(problem("cat <<X\nY"), "run.sh:2: the here-document X does not end");
  EXPECT_NE(problem("A=" + std::string(100, 'x') + "\n" +
                    [] {
                      std::string doubling;
                      for (int i = 0; i < 40; ++i) doubling += "A=$A$A\n";
                      return doubling;
                    }())
                .find("grow beyond"),
            std::string::npos);
}

int64_t ranks(const std::string& text) {
  const ShellScript script = read(text);
  Result<LaunchCommand> launch = find_launch(script, "run.sh");
  EXPECT_TRUE(launch.ok());
  std::string missing;
  return launch.ok() ? launched_ranks(*launch, script, missing).value_or(-1) : 0;
}

TEST(LaunchCommand, CountsRanksAsTheLauncherDoes) {
  EXPECT_EQ(ranks("torchrun --nproc_per_node 8 --nnodes=4 train.py --x 1\n"), 32);
  EXPECT_EQ(ranks("python -m torch.distributed.run --nproc-per-node 2 -m pkg.train --x 1\n"), 2);
  EXPECT_EQ(ranks("deepspeed --include localhost:0,1,2 train.py\n"), 3);
  EXPECT_EQ(ranks("accelerate launch --num_processes 6 train.py\n"), 6);
  EXPECT_EQ(
      ranks(
          "#SBATCH --nodes=16\n#SBATCH --ntasks-per-node 8\nsrun bash -c \"python pretrain_gpt.py --num-layers 2\"\n"),
      128);
  EXPECT_EQ(ranks("python train.py\n"), 1);
  EXPECT_EQ(ranks("torchrun --nproc_per_node 8 --nnodes $N train.py\n"), -1);
}

}  // namespace
}  // namespace fivefold
