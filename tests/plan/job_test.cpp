// Ranks, nodes and time from decks; and the scripts, word by word.
#include "plan/job.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "deck/load.hpp"

namespace trireme::plan {
namespace {

const std::string kDeck =
    "model: {layers: 16, hidden: 64, heads: 8, sequence: 128, vocab: 1000}\n"
    "batch: {micro: 1, global: 840}\n"
    "schedule: {peak: 1e-3}\n"
    "data: {train: corpus, split: 1}\n"
    "train: {iterations: 100}\n";

deck::Deck deck_with(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), "run.device=cuda");
  return deck::parse(kDeck, "small.yaml", overrides);
}

/// Ranks and nodes, as "ranks / nodes".
std::string placed(const std::vector<std::string>& overrides, JobRequest request) {
  deck::Deck deck = deck_with(overrides);
  deck::resolve_world_size(deck, ranks_for(deck, request));
  const Job job = make_job(deck, request, 1.0);
  std::string text;
  for (const JobComponent& component : job.components)
    text += fmt::format("{}{} / {}", text.empty() ? "" : ", ",
                        component.nodes * component.ranks_per_node, component.nodes);
  return text;
}

std::string problem(const std::vector<std::string>& overrides, const JobRequest& request) {
  try {
    return placed(overrides, request);
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(Job, DataAutoTakesTheGpusOfTheNodes) {
  EXPECT_EQ(placed({}, {.gpus_per_node = 8}), "8 / 1");
  EXPECT_EQ(placed({}, {.gpus_per_node = 4, .nodes = 3}), "12 / 3");
  EXPECT_EQ(placed({"parallel.pipeline=16"}, {.gpus_per_node = 8}), "16 / 2");
  EXPECT_EQ(placed({"parallel.pipeline=3", "parallel.partition=8-4-4"}, {.gpus_per_node = 8}),
            "6 / 1");
  EXPECT_EQ(placed({}, {.gpus_per_node = 0}), "1 / 1");
}

TEST(Job, GivenRanksTakeAsFewEqualNodesAsHoldThem) {
  EXPECT_EQ(placed({"parallel.data=8"}, {.gpus_per_node = 8}), "8 / 1");
  EXPECT_EQ(placed({"parallel.data=10"}, {.gpus_per_node = 8}), "10 / 2");
  EXPECT_EQ(placed({"parallel.data=7"}, {.gpus_per_node = 4}), "7 / 7");
  EXPECT_EQ(placed({}, {.gpus_per_node = 8, .ranks = 20}), "20 / 4");
  EXPECT_EQ(placed({"parallel.data=4"}, {.gpus_per_node = 0, .nodes = 2}), "4 / 2");
}

TEST(Job, TensorRanksStayTogetherWhereThatIsCheap) {
  EXPECT_EQ(placed({"parallel.tensor=4", "parallel.data=3"}, {.gpus_per_node = 8}), "12 / 3");
  EXPECT_EQ(placed({"parallel.tensor=8", "parallel.data=3"}, {.gpus_per_node = 4}), "24 / 6");
  // No node of 3 holds a group of 4; pairs of nodes do, and no third group comes between.
  EXPECT_EQ(placed({"parallel.tensor=4", "parallel.data=3"}, {.gpus_per_node = 3}), "12 / 6");
}

TEST(Job, TwoKindsOfNodesHaveARankOnEachGpu) {
  const std::vector<deck::NodeKind> kinds = {{1, "a100", 8}, {2, "a10", 4}};
  EXPECT_EQ(placed({"batch.global=832"}, {.kinds = kinds}), "8 / 1, 8 / 2");
  EXPECT_EQ(placed({"parallel.pipeline=16"}, {.kinds = kinds}), "8 / 1, 8 / 2");
  EXPECT_EQ(problem({"parallel.data=12"}, {.kinds = kinds}),
            "the 2 kinds of nodes have 16 GPUs, but the layout has 12 ranks: each GPU of a "
            "heterogeneous job gets one rank");
}

TEST(Job, RanksThatDoNotFitAreRefused) {
  EXPECT_EQ(problem({"parallel.data=8"}, {.gpus_per_node = 8, .nodes = 3}),
            "--nodes 3: 8 ranks cannot be shared out equally among them (--ranks N starts others)");
  EXPECT_EQ(problem({"parallel.data=12"}, {.gpus_per_node = 4, .nodes = 2}),
            "--nodes 2: 12 ranks are 6 on each, which has 4 GPUs; take 3 nodes or more");
  EXPECT_EQ(problem({"parallel.pipeline=16"}, {.gpus_per_node = 4, .nodes = 2}),
            "--nodes 2: 8 GPUs cannot hold one copy of the model, parallel.tensor * "
            "parallel.pipeline = 16");
}

TEST(Job, TimeIsAskedForOrTheDecksOrEstimated) {
  const auto seconds = [](const std::vector<std::string>& overrides, double flops_per_token,
                          JobRequest request) {
    deck::Deck deck = deck_with(overrides);
    deck::resolve_world_size(deck, 1);
    return make_job(deck, request, flops_per_token).seconds;
  };
  const JobRequest gpu{.gpus_per_node = 1};
  EXPECT_EQ(seconds({}, 1.0, gpu), 1800);  // next to nothing, and fifteen minutes, rounded up
  // 100 iterations of 840 * 128 tokens: 1e10 FLOPs each make 1075.2 s at 100 TFLOP/s.
  EXPECT_EQ(seconds({}, 1e10, gpu), 2700);
  EXPECT_EQ(seconds({}, 1e13, gpu), 24 * 3600);
  EXPECT_EQ(seconds({"train.exit_duration=90 minutes"}, 1e13, gpu), 105 * 60);
  EXPECT_EQ(seconds({}, 1e13, {.gpus_per_node = 1, .seconds = 77.0}), 77);
}

TEST(Job, TellsOfNoLimitThatItsLauncherDoesNotSet) {
  const auto why = [](const std::vector<std::string>& overrides, Launcher launcher) {
    deck::Deck deck = deck_with(overrides);
    deck::resolve_world_size(deck, 1);
    return make_job(deck, {.launcher = launcher, .gpus_per_node = 1}, 1e13).why_seconds;
  };
  EXPECT_NE(why({}, Launcher::slurm).find("; a job is requeued after a day at most"),
            std::string::npos);
  EXPECT_NE(why({}, Launcher::mpirun).find("; nothing limits it"), std::string::npos);
  const std::vector<std::string> limit{"train.exit_duration=90 minutes"};
  EXPECT_EQ(why(limit, Launcher::slurm), "train.exit_duration = 1h30m, and 15m00s more");
  EXPECT_EQ(why(limit, Launcher::mpirun), "train.exit_duration = 1h30m");
}

std::string script(std::vector<std::string> overrides, JobRequest request) {
  request.folder = "/work dir";
  request.program = "/opt/bin/trireme-pretrain";
  request.deck = "decks/it's.yaml";
  deck::Deck deck = deck_with(overrides);
  request.overrides = std::move(overrides);
  deck::resolve_world_size(deck, ranks_for(deck, request));
  return to_script(make_job(deck, request, 1e10));
}

TEST(JobScript, KeepsBackslashesOfTheFolder) {
  deck::Deck deck = deck_with({});
  JobRequest request{.gpus_per_node = 8, .folder = "/work\\dir", .program = "/p", .deck = "d.yaml"};
  deck::resolve_world_size(deck, ranks_for(deck, request));
  const std::string text = to_script(make_job(deck, request, 1e10));
  EXPECT_NE(text.find("#SBATCH --chdir='/work\\\\dir'\n"), std::string::npos) << text;
}

TEST(JobScript, OfSlurmInAnImage) {
  EXPECT_EQ(script({"parallel.tensor=4", "run.name=two words"},
                   {.gpus_per_node = 8, .nodes = 2, .image = "/images/t.sqsh", .partition = "gpu"}),
            R"script(#!/bin/bash
# two_words: 16 ranks = tensor 4 x pipeline 1 x data 4; written by trireme-pretrain --print-job.
# Time: 1.1e+17 FLOPs at 100 TFLOP/s a GPU take 1m07s; rounded up, with time to start.
#SBATCH --job-name=two_words
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=00:30:00
#SBATCH --signal=USR1@360
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x_%j.out
#SBATCH --chdir='/work dir'

refuse() { echo "two_words: $1" >&2; exit 1; }
[ -r "decks/it's.yaml" ] || refuse "there is no deck decks/it's.yaml in /work dir on this host"
[ -r /images/t.sqsh ] || refuse 'there is no image /images/t.sqsh on this host'
command -v srun >/dev/null || refuse 'there is no srun here: submit this with sbatch'
srun --mpi=list 2>&1 | grep -qw pmix || refuse 'srun has no --mpi=pmix (see srun --mpi=list)'
srun --help 2>&1 | grep -q -- --container-image || refuse 'srun has no --container-image: pyxis is not installed here'

# The run cannot see in which container it is: so it is told what continues it.
container=(--container-image=/images/t.sqsh --container-mounts='/work dir:/work dir' --container-workdir='/work dir'
  --no-container-remap-root)
export TRIREME_CONTAINER="${container[*]@Q}"

# Slurm's default and tree fences can return before all ranks have entered them: then
# Open MPI crashes in MPI_Init.
export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}
newest_checkpoint() {
  awk '/^[{]"kind":"start"/ { newest = "" } /^[{]"kind":"checkpoint"/ { newest = $0 }
    END { print newest }' 2>/dev/null <'runs/two words'/metrics.jsonl || true
}
before=$(newest_checkpoint)
count_starts() {
  sed -n '/^{"kind":"start"/p' 2>/dev/null <'runs/two words'/metrics.jsonl | wc -l
}
starts_before=$(count_starts)
# NSYS=1 or NCU=1: a report of Nsight for each rank in the run folder.
profiler=()
if [ "${NSYS:-0}" = 1 ]; then profiler=(nsys profile '--trace=cuda,nvtx,mpi' --output='runs/two words'/profile/nsys-%h-%p); fi
if [ "${NCU:-0}" = 1 ]; then profiler=(ncu --nvtx --launch-skip=2000 --launch-count=100 --export='runs/two words'/profile/ncu-%h-%p); fi
if [ ${#profiler[@]} -gt 0 ]; then mkdir -p 'runs/two words'/profile || exit; fi
# A rank that fails takes the others with it after half a minute; one that ends with 75
# must not. Ranks that crash before the run has started, as Open MPI may in MPI_Init, are
# launched again.
for _ in 1 2 3; do
  srun --mpi=pmix --cpus-per-task=8 --kill-on-bad-exit=0 --wait=30 \
    --gpu-bind=none \
    "${container[@]}" \
    "${profiler[@]}" trireme-pretrain "decks/it's.yaml" \
    parallel.tensor=4 \
    'run.name=two words'
  code=$?
  case "$code" in 134 | 135 | 139) ;; *) break ;; esac
  if [ "$(count_starts)" != "$starts_before" ]; then break; fi
done
# A rank that a signal ended (SIGABRT, SIGBUS, SIGKILL, SIGSEGV) counts as 75 where this start has
# written a checkpoint: the next one resumes from it and gets further.
case $code in
  134 | 135 | 137 | 139)
    now=$(newest_checkpoint)
    if [ -n "$now" ] && [ "$now" != "$before" ]; then code=75; fi
    ;;
esac
# 75: stopped early with a checkpoint, from which the same job resumes.
if [ "$code" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
)script");
}

TEST(JobScript, OfTwoKindsOfNodesWithTypedGpus) {
  JobRequest request{.kinds = {{1, "a100", 8}, {2, "a10", 4}}};
  request.partition = "gpu";
  request.account = "physics";
  request.modules = "cuda/12.8 openmpi/5.0";
  const std::string text = script({"batch.global=832"}, request);
  EXPECT_NE(text.find(R"script(#SBATCH --job-name=small
#SBATCH --partition=gpu
#SBATCH --account=physics
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=a100:8
#SBATCH --cpus-per-task=8
#SBATCH --time=00:30:00
#SBATCH --signal=USR1@360
#SBATCH hetjob
#SBATCH --partition=gpu
#SBATCH --account=physics
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=a10:4
#SBATCH --cpus-per-task=8
#SBATCH --time=00:30:00
#SBATCH --signal=USR1@360
#SBATCH --requeue
)script"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("module load cuda/12.8 openmpi/5.0 ||"), std::string::npos) << text;
  EXPECT_NE(text.find("  --het-group=0-1 \\\n"), std::string::npos) << text;
  request.launcher = Launcher::mpirun;
  const std::string hosts = script({"batch.global=832"}, request);
  EXPECT_NE(hosts.find("each of 3 hosts: 1 of NAME slots=8, then 2 of NAME slots=4\n"),
            std::string::npos)
      << hosts;
  EXPECT_NE(hosts.find("mpirun -n 16 --hostfile \"$HOSTS\" --map-by slot "), std::string::npos);
}

TEST(JobScript, OfMpirunOnSeveralHosts) {
  EXPECT_EQ(script({"parallel.data=4"},
                   {.launcher = Launcher::mpirun, .gpus_per_node = 2, .seconds = 3600.0}),
            R"script(#!/bin/bash
# small: 4 ranks = tensor 1 x pipeline 1 x data 4; written by trireme-pretrain --print-job.
# Time: as requested.
# SIGUSR1 makes the run save a checkpoint and stop; run this again to resume.
# HOSTS is a file with a line for each of 2 hosts: NAME slots=2
HOSTS=${HOSTS:-hosts}

cd '/work dir' || exit
refuse() { echo "small: $1" >&2; exit 1; }
[ -r "decks/it's.yaml" ] || refuse "there is no deck decks/it's.yaml in /work dir on this host"
[ -x /opt/bin/trireme-pretrain ] || refuse 'there is no program /opt/bin/trireme-pretrain on this host'
[ -r "$HOSTS" ] || refuse "there is no list of hosts '$HOSTS': set HOSTS"
command -v mpirun >/dev/null || refuse 'there is no mpirun on PATH: install Open MPI, or load its module'
# Open MPI refuses root, as in containers, unless it is told otherwise.
if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

# NSYS=1 or NCU=1: a report of Nsight for each rank in the run folder.
profiler=()
if [ "${NSYS:-0}" = 1 ]; then profiler=(nsys profile '--trace=cuda,nvtx,mpi' --output=runs/small/profile/nsys-%h-%p); fi
if [ "${NCU:-0}" = 1 ]; then profiler=(ncu --nvtx --launch-skip=2000 --launch-count=100 --export=runs/small/profile/ncu-%h-%p); fi
if [ ${#profiler[@]} -gt 0 ]; then mkdir -p runs/small/profile || exit; fi
exec mpirun -n 4 --hostfile "$HOSTS" --map-by ppr:2:node --bind-to none \
  "${profiler[@]}" /opt/bin/trireme-pretrain "decks/it's.yaml" \
  parallel.data=4 \
  --time-limit 01:00:00
)script");
}

TEST(JobScript, OfTheHostAsksForNoGpus) {
  const std::string text = script({"parallel.data=2"}, {.gpus_per_node = 0, .cpus_per_rank = 3});
  EXPECT_EQ(text.find("gpu"), std::string::npos) << text;
  EXPECT_NE(text.find("--cpus-per-task=3"), std::string::npos) << text;
}

}  // namespace
}  // namespace trireme::plan
