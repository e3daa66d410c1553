# descant's completion for bash: made by tools/generate
_descant() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command words i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "${command:+$command }${COMP_WORDS[i]}" in
        "info"|"plans"|"run"|"hub"|"secret"|"train"|"eval"|"predict"|"merge"|"bsp"|"bsp run"|"bsp control"|"bsp local"|"bsp status"|"gen"|"gen ctr"|"gen cache"|"report"|"bench"|"bench step"|"bench exchange"|"bench overlap"|"bench segment"|"bench train"|"bench parse"|"bench modules") command+=${command:+ }${COMP_WORDS[i]} ;;
        *) break ;;
        esac
    done
    case "$command $prev" in
    "train --format") words="auto criteo libsvm libffm idx cache" ;;
    "train --model") words="linear fm dlrm mlp" ;;
    "train --tables") words="replicate shard auto" ;;
    "train --rows-wire") words="plan f32 bf16 q8" ;;
    "train --rows-move") words="auto no yes" ;;
    "train --optimizer") words="sgd adagrad adam adamw ftrl" ;;
    "train --table-optimizer") words="sgd adagrad rowwise-adagrad ftrl" ;;
    "train --schedule") words="constant linear cosine" ;;
    "train --on-term") words="auto leave all" ;;
    "train --final") words="auto local mean central" ;;
    "eval --format") words="saved auto criteo libsvm libffm idx cache" ;;
    "predict --format") words="saved auto criteo libsvm libffm idx cache" ;;
    "bsp --optimizer") words="sgd adagrad adam adamw ftrl" ;;
    "bsp run --optimizer") words="sgd adagrad adam adamw ftrl" ;;
    "bsp control --optimizer") words="sgd adagrad adam adamw ftrl" ;;
    "bsp local --optimizer") words="sgd adagrad adam adamw ftrl" ;;
    "gen cache --format") words="auto criteo libsvm libffm idx" ;;
    "bench exchange --what") words="mean elastic" ;;
    "bench exchange --memory") words="shared attached buffer" ;;
    "bench train --model") words="linear fm dlrm mlp" ;;
    "bench train --optimizer") words="sgd adagrad adam adamw" ;;
    "bench train --table-optimizer") words="sgd adagrad rowwise-adagrad" ;;
    "bench train --input") words="cache text" ;;
    "bench parse --format") words="criteo libsvm" ;;
    *)
        case "$command" in
        "") words="info plans run hub secret train eval predict merge bsp gen report bench --help --version" ;;
        "info") words="--help" ;;
        "plans") words="--markdown --help" ;;
        "run") words="--hosts --per-host --port --secret --insecure --restarts --ssh --env --plain --help" ;;
        "hub") words="--trainers --state --state-every --status --help" ;;
        "secret") words="--help" ;;
        "train") words="--config --data --eval --format --plain-ids --fields --epochs --examples --chunk --depth --max-bad --model --rows --tables --rows-wire --rows-age --rows-ahead --table-memory --rows-admit --rows-unused --rows-move --rows-replica --rows-shares --width --bottom --top --batch --optimizer --table-optimizer --lr --table-lr --momentum --beta1 --beta2 --epsilon --beta --l1 --l2 --schedule --warmup --seed --trainers --workers --sync --job --link --sync-cpu --sync-rate --start-s --on-term --final --eval-every --patience --checkpoint --checkpoint-every --resume --log --log-every --quiet --help" ;;
        "eval") words="--json --workers --checkpoint --data --format --batch --max-bad --help" ;;
        "predict") words="--checkpoint --data --format --batch --max-bad --out --help" ;;
        "merge") words="--help" ;;
        "bsp") words="run control local status --name --modules --locals --number --slots --params --model --period --every-gradients --min-gradients --bound --optimizer --lr --momentum --beta1 --beta2 --epsilon --beta --l1 --l2 --clip --supersteps --examples --minutes --restarts --grace --eval --eval-every --patience --checkpoint --checkpoint-every --resume --log --quiet --help" ;;
        "bsp run") words="--name --modules --locals --number --slots --params --model --period --every-gradients --min-gradients --bound --optimizer --lr --momentum --beta1 --beta2 --epsilon --beta --l1 --l2 --clip --supersteps --examples --minutes --restarts --grace --eval --eval-every --patience --checkpoint --checkpoint-every --resume --log --quiet --help" ;;
        "bsp control") words="--name --modules --locals --number --slots --params --model --period --every-gradients --min-gradients --bound --optimizer --lr --momentum --beta1 --beta2 --epsilon --beta --l1 --l2 --clip --supersteps --examples --minutes --restarts --grace --eval --eval-every --patience --checkpoint --checkpoint-every --resume --log --quiet --help" ;;
        "bsp local") words="--name --modules --locals --number --slots --params --model --period --every-gradients --min-gradients --bound --optimizer --lr --momentum --beta1 --beta2 --epsilon --beta --l1 --l2 --clip --supersteps --examples --minutes --restarts --grace --eval --eval-every --patience --checkpoint --checkpoint-every --resume --log --quiet --help" ;;
        "bsp status") words="--over --json --help" ;;
        "gen") words="ctr cache --help" ;;
        "gen ctr") words="--rows --seed --model --categories --zipf --noise --positive --out --help" ;;
        "gen cache") words="--data --out --format --plain-ids --fields --max-bad --help" ;;
        "report") words="--out --help" ;;
        "bench") words="step exchange overlap segment train parse modules --help" ;;
        "bench step") words="--plan --workers --bytes --calls --json --help" ;;
        "bench exchange") words="--what --memory --trainers --bytes --runs --link --job --sync-cpu --again --json --help" ;;
        "bench overlap") words="--plan --trainers --workers --bytes --step-ms --link --pairs --run-s --sync-cpu --json --help" ;;
        "bench segment") words="--bytes --turns --json --help" ;;
        "bench train") words="--model --batch --trainers --workers --sync --link --table-rows --optimizer --table-optimizer --input --rows --rounds --run-s --json --help" ;;
        "bench parse") words="--format --bytes --json --help" ;;
        "bench modules") words="--bytes --modules --batch --period-ms --slow --pairs --run-s --json --help" ;;
        esac ;;
    esac
    # shellcheck disable=SC2207
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _descant descant
