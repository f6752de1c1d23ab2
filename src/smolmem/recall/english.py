"""How much a word of a question tells, by how frequent it is in English.

That a memory has "week" or "result" says little about whether it knows the answer, however rare the word is in that
memory: a small memory has few words, so all of them are rare. So the words that English has most are listed here.
"""

from __future__ import annotations

import calendar
from functools import cache, lru_cache

from smolmem.recall.query import STOP_WORDS
from smolmem.store.terms import terms_of

EVERYDAY, PLAIN, OTHER = 1.0, 2.5, 5.0
"""What a word tells: one of everyday English, one that most texts have, any other. About as much as their frequencies:
the logarithm of how rarely a page has the word."""
_EVERYDAY = """
    able actually add after again ago all also always another any anything around ask back bad bear became become
    before began begin begun being best better between big both bought bring broke broken brought built call came
    case change chose chosen come common consider continue day decide describe different done drew driven drove
    during each early easy effort else end enough even evening ever every example explain face fact feel felt few
    find first follow found full gave general give given go goes going gone good got gotten great grew group grow
    grown hand happen hard having heard held help high hold hope idea important include instead interest involve
    item keep kept kind knew know known large last late lay lead learn least leave led less let like likely line
    list little live long look lose lost lot love low made main make many matter may mean meant mention met might
    mind month more morning most move much must name near need never new next night noon nothing now number often
    old once one only open order other overall own paid part particular pass people perform person place plan play
    point possible present problem provide put question quite ran rather read real really reason recent relate
    remain require right rose run said same sat saw say second see seem seen send sent set share show side similar
    simple since single small sold someone something sometimes specific spent spoke spoken start state stay step
    still stood stop sure take taken talk taught tell term thank thing think thought three through time today
    together told tonight took top total toward true try turn two type under understand understood until upon use
    useful various version want wanted way week well went while whole wish within without won word work world worn
    written wrong wrote year yesterday yet
"""
_PLAIN = """
    ability above absolute accept access accident accord account accurate accurately achieve across act action
    active activity actual addition additional address adequate adjust admit adult advance advantage advice affect
    afford afraid against age agency agent agree ahead aim air allow almost alone along already although among
    amount analysis analyze animal announce annual answer appear application apply approach appropriate approve
    approximate area argue argument arm arrange arrive art article aside aspect assess assign assist assistant
    assume assumption attach attack attempt attend attention attribute author available average avoid aware away
    baby balance ball bank bar base basic basis beach beat beautiful because bed behave behind belief believe belong
    below benefit beside beyond bill bit black block blue board boat body book born bottom box boy break brief
    bright broad brother brown budget build building business busy buy calculate calculation cancel capacity car
    card care career careful carry cat catch cause cell center central century certain chain chair challenge chance
    chapter character charge cheap check child choice choose church circle city claim clarify class clean clear
    clearly click close cloud club coast code coffee cold collect collection college color column comment commit
    communicate community company compare comparison complete complex comprehensive computer concept concern
    conclude conclusion condition conduct confirm conflict connect connection consist consistent constraint contact
    contain content context contract contrast contribute control conversation convert cook cool copy corner correct
    correctly cost count country couple course court cover create creative credit criteria critical cross crucial
    culture cup current currently custom customer cut daily damage dance danger dark data database date daughter
    dead deal death debate decade decision deep default define definition degree deliver demand demonstrate depend
    dependency depth derive description design desk despite detail detailed determine develop development device die
    difference difficult difficulty dinner direct direction directly director disagree discover discuss discussion
    display distance divide doctor document dog dollar door double doubt down download draw dream dress drink drive
    drop dry due earn earth ease east eat edge edit education effect effective efficiency efficient eight either
    element email employee empty encounter encourage energy engage engine enjoy ensure enter entire entry
    environment equal error especially essential establish estimate evaluate event eventually evidence exact exactly
    examine excellent except exchange excited execute exercise exist expect expensive experience expert explicit
    explicitly explore express extend extra extract eye factor fail failed failure fair fall false familiar family
    famous far farm fast father favorite fear feature feed feedback fetch field fight figure file fill film final
    finally finance fine finish fire fish fit five fix flat flight floor flow focus food foot force forget form
    format former forward four frame free fresh friend front fruit fully fun function further future gain game
    garden gather generate gentle get gift girl glad glass goal god gold government green ground growth guess guide
    guy habit hair half handle hang happy hat head health hear heart heat heavy height hello here herself hi hide
    highly hill himself history hit home honest hospital host hot hotel hour house however huge human hundred hurt
    husband identify ignore image imagine immediate immediately impact implement implementation imply improve
    improvement inaccurate inaccurately inappropriate inch incident incomplete incorrect incorrectly increase indeed
    independent indicate individual industry inefficient influence inform information initial initially input inside
    insist inspire install instance instruct instruction insufficient integrate interested interesting internal
    international internet interpret interview introduce invalid investigate invite island issue itself job join
    journey judge jump key keyword kid kill kitchen knowledge label lack lady lake land language laugh law lay
    leader leading leaf left leg length lesson letter level library lie life light limit link listen local locate
    location lock logic lost loud luck lunch machine mail maintain major majority male man manage manager manner map
    mark market marry master match material math maximum maybe meal meaning measure media medical meet meeting
    member memory mental menu message method middle mile milk million minimum minor minute misinterpret mislead miss
    missing mistake misunderstand mix model modern modify module moment money mother motivate mountain mouth
    movement movie multiple music myself namely nation national natural nature nearly necessary negative neither
    nervous network news nice nine nobody node none nor normal north note notice object objective observe obtain
    obvious obviously occasion occur offer office officer official oil okay omit online onto operate operation
    opinion opportunity oppose option original otherwise ought ourselves outcome output outside overcome overlook
    owner pack page pain paint pair paper parameter parent park partial partner party past path patient pattern pay
    peace per perfect perhaps period permit personal phase phone photo phrase physical pick picture piece planning
    plant plate platform player please plenty plus poem policy poor popular population position positive possibility
    post potential power practice precise prefer premature prepare presence press pressure pretty prevent previous
    previously price primary print prior private prize probably procedure proceed process produce product production
    professional program progress project promise proper properly protect proud prove public publish pull purchase
    purpose push quality quarter query quick quickly quiet radio rain raise range rate reach react reader ready
    reality realize receive recently recognize recommend record recover red reduce redundant refer reference reflect
    refuse regard region regular relation relationship relative relax release relevance relevant reliable reliance
    rely remember remind remove repeat repeatedly replace reply report represent request requirement research
    resolve resource respect respond response rest restaurant result retrieve return reveal review rich ride rise
    risk river road rock role room root round row rule safe sale sample save scale scene schedule school science
    score screen script sea search season seat secret section secure seek select selection sell sense sentence
    separate sequence series serious serve server service session seven several shape sheet shift ship shop short
    shot should shoulder shut sick sight sign signal significant silver simply sing sister sit site situation six
    size skill skin skip sky sleep slow slowly smart smile social society soft software solely solution solve son
    song soon sort soul sound source south space speak special speech speed spell spend sport spot spread spring
    staff stage stand standard star statement station status steal stick stock stone store storm story straight
    strange strategy street stress strict string strong structure struggle student studio study stuff style subject
    subsequent subsequently success successful successfully such sudden suffer sufficient suggest suggestion suit
    summary summer sun supply support suppose surface surprise sweet switch system table target task taste teach
    teacher team tear technical technique technology television ten tend terminal termination terrible test text
    theory therefore thick third thorough thought thousand throughout throw thus ticket tie tight till tip tire
    title tomorrow tone tool topic touch tour town track trade traditional traffic train training transfer translate
    travel treat tree trip trouble trust truth twice typical unable uncle unclear unexpected unit unless unnecessary
    unrelated update upload upper usage user usual usually utilize valid validate value variable variety
    verification verify via video view village visit visual voice wait walk wall war warm wash waste watch water
    weak wear weather web website wedding weekend weight west wet whatever wheel whenever whether white whose wide
    wife wild will win wind window winter wonder wonderful wood worker worry worth write writer yard yeah yellow yes
    young yourself zero
"""


@lru_cache(10_000)
def information(word: str) -> float:
    """What it tells about the answer that a memory has this word."""
    everyday, plain = _terms()
    term = "".join(terms_of(word))
    if (word.isdigit() and len(word) < 5) or term in everyday:
        return EVERYDAY
    return PLAIN if term in plain else OTHER


@cache
def _terms() -> tuple[frozenset[str], frozenset[str]]:
    """The terms of both lists."""
    dates = [*calendar.day_name, *calendar.month_name]
    everyday = frozenset(terms_of(" ".join([*STOP_WORDS, *dates, _EVERYDAY])))
    return everyday, frozenset(terms_of(_PLAIN)) - everyday
