// The abbreviations of SentenceRules, for the languages that have some in CLDR (the sentence-break
// data of ICU), chosen by what they do at the end of sentences.
#include <fmt/ranges.h>

#include <array>

#include "core/error.hpp"
#include "tokenizer/preprocess/preprocess.hpp"

namespace trireme::tokenizer {
namespace {

/// The words between blanks in a constant.
SentenceRules::Words words(std::string_view text) {
  SentenceRules::Words words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.insert(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

SentenceRules english() {
  return {.code = "en",
          .name = "english",
          .never_last = words(
              "Mr Mrs Ms Mx Messrs Mmes Dr Drs Prof Rev Revd Fr Hon Gen Col Maj Capt Cpt Lt Lieut "
              "Cdr Cmdr Adm Sgt Cpl Pvt Sen Rep Gov Pres Amb Supt Det Insp Mlle Mme St Ste Mt Ft "
              "e.g i.e eg ie viz cf vs v resp approx ca esp incl"),
          .before_number = words("No Nos Fig Figs Eq Eqs Sec Secs Ch Chap Vol Vols Art Pt Ex Ref "
                                 "Tab p pp par para vol vols ch chap fig figs eq sec art l ll n nn "
                                 "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"),
          .perhaps_last =
              words("etc al Inc Ltd Co Corp Bros Jr Sr Esq Dept Univ Assn Ave Blvd Rd St Ph.D a.m "
                    "p.m A.M P.M B.C A.D U.S U.K U.N e.t.c ed eds est min max Mass Calif Conn Ariz "
                    "Ala Fla Ga Ill Ind Mich Minn Penn Tenn Tex Va Wash Wis"),
          .starters = words(
              "The A An This That These Those It Its He She They We I You His Her Their Our My "
              "Your There Here In On At By For From With Without To Of As But And Or Nor So Yet If "
              "When While Where Who What Why How After Before Since Because Although Though "
              "However Then Thus Therefore Meanwhile Now Some Many Most Several Both All Each "
              "Another Other One Two No Not Only Also Even Still During Under Over According")};
}

SentenceRules german() {
  return {.code = "de",
          .name = "german",
          .never_last = words(
              "Hr Hrn Fr Frl Dr Prof Ing Dipl Dipl.-Ing Dipl.-Kfm Mag Hl St Sr Jr Nr Bd Abs Abt "
              "z.B d.h u.a i.d.R m.E o.g s.o s.u v.a z.T z.Hd bzw ca evtl ggf ggfs inkl exkl "
              "einschl insb insbes sog vgl Vgl v vs geb gest verh ehem bes betr bspw gem jew lt "
              "näml röm-kath schweiz österr allg amtl röm kath ev frz engl dt Reg.-Bez Ausg Hrsg "
              "Verf entspr eigtl ursprüngl mind max zzgl abzgl"),
          .before_number = words("S Nr Abb Tab Art Kap Bd Abs Fn Rd Tel Str Jh Jahrh"),
          .perhaps_last = words("usw etc u.ä u.Ä u.s.w ff f Co Inc Ltd Mio Mrd Std Min Sek Jan Feb "
                                "Apr Aug Sep Sept Okt Nov Dez n.Chr v.Chr Chr u.Z e.V a.D i.R i.V "
                                "Jr Fa"),
          .starters = words(
              "Der Die Das Dem Den Des Ein Eine Einer Einem Einen Er Sie Es Wir Ihr Ich Du Man "
              "Dieser Diese Dieses Diesem Diesen Jener Jene Jenes Sein Seine Ihre Unser Unsere "
              "Mein Meine In Im Am An Auf Aus Bei Beim Mit Nach Von Vom Vor Zu Zum Zur Für Durch "
              "Gegen Ohne Um Unter Über Und Oder Aber Doch Denn Wenn Als Weil Da Daher Dann "
              "Danach Dort Hier Jetzt Nun So Auch Noch Nur Schon Nicht Kein Keine Was Wer Wie Wo "
              "Warum Alle Viele Einige Während Seit Trotzdem Dabei Damit Dadurch Jedoch"),
          .ordinal_period = true};
}

SentenceRules french() {
  return {.code = "fr",
          .name = "french",
          .never_last = words(
              "M MM Mme Mmes Mlle Mlles Dr Pr Prof Me Mgr St Ste Sr Cie p.ex c.-à-d cf env anc "
              "ap av éd édit coll collab dir ill trad v vs"),
          .before_number = words("no nos fig p pp chap vol art t ch par réf"),
          .perhaps_last = words("etc al Jr Inc Ltd Co janv févr avr juil sept oct nov déc S.A J.-C "
                                "P.-D.G dict encycl"),
          .starters = words(
              "Le La Les L Un Une Des Du De D Ce Cet Cette Ces C Il Elle Ils Elles On Nous Vous Je "
              "J Tu Son Sa Ses Leur Leurs Mon Ma Mes Notre Nos Votre Vos Et Mais Ou Donc Or Ni Car "
              "En Dans Sur Sous Par Pour Avec Sans Chez Vers Après Avant Depuis Pendant Si Quand "
              "Lorsque Comme Puis Alors Ainsi Aussi Cependant Toutefois Pourtant Que Qui Quel "
              "Quelle Où Tout Tous Toute Toutes Plusieurs Certains À A")};
}

SentenceRules spanish() {
  return {
      .code = "es",
      .name = "spanish",
      .never_last = words(
          "Sr Sra Sres Sras Srta Srtas Dr Dra Drs Dres D Dña Da Dª Don Prof Lic Licdo Licda "
          "Ing Arq Excmo Excma Excmos Ilmo Ilma Rvdo Rvdmo Mons Fr Sto Sta Gral Cnel Cap p.ej "
          "ej cf cfr vid vs trad fund Avda Av"),
      .before_number = words("núm núms fig figs p pp pág págs cap vol art t tel"),
      .perhaps_last = words("etc Cía Ltda S.A S.L Inc Corp EE.UU EEUU FF.CC JJ.OO RR.HH a.C d.C "
                            "a.m p.m ene feb mar abr may jun jul ago sept oct nov dic Ud Uds Vd "
                            "Vds depto dpto prov"),
      .starters =
          words("El La Los Las Lo Un Una Unos Unas Este Esta Estos Estas Ese Esa Esos Esas Aquel "
                "Aquella Él Ella Ellos Ellas Yo Tú Nosotros Su Sus Mi Mis Y E O U Pero Sino Mas En "
                "Con Sin Por Para De Del Al A Ante Bajo Desde Hasta Hacia Según Sobre Tras Entre "
                "Durante Si Cuando Como Cómo Donde Porque Aunque Pues Entonces Luego Así También "
                "Tampoco Además No Ni Ya Se Que Qué Quién Cuál Todo Todos Muchos Algunos")};
}

SentenceRules italian() {
  return {.code = "it",
          .name = "italian",
          .never_last = words(
              "Sig Sigg Sig.ra Dott Dott.ssa Dr Prof Prof.ssa Ing Avv Arch Geom Rag On Sen Mons "
              "Don S.E cfr es ecc.mo N.B v vs ca mitt int div"),
          .before_number = words("n nn fig figg p pp pag pagg cap vol art tav tab sez all"),
          .perhaps_last = words("ecc etc S.p.A S.r.l Inc Ltd Co Jr a.C d.C gen feb mar apr mag giu "
                                "lug ago set sett ott nov dic"),
          .starters = words(
              "Il Lo La I Gli Le L Un Uno Una Questo Questa Questi Queste Quello Quella Egli Ella "
              "Esso Essa Essi Esse Lui Lei Loro Io Tu Noi Voi Suo Sua Suoi Sue E Ed Ma O Oppure "
              "Però Dunque Quindi In Nel Nella Nei Nelle Con Senza Per Da Dal Dalla Di Del Della "
              "Dei Delle A Al Alla Su Sul Sulla Tra Fra Dopo Prima Durante Se Quando Come Dove "
              "Perché Poiché Mentre Poi Allora Così Anche Inoltre Non Né Si Che Chi Tutti Molti "
              "Alcuni È")};
}

SentenceRules portuguese() {
  return {.code = "pt",
          .name = "portuguese",
          .never_last = words(
              "Sr Sra Srs Sras Srta Dr Dra Drs Dras Prof Profa Eng Exmo Exma Ilmo Ilma Rev Pe Fr D "
              "Dom Gen Cel Cap Sto Sta Av p.ex ex cf vs trad"),
          .before_number = words("n nº núm fig figs p pp pág págs cap caps vol art t tel séc"),
          .perhaps_last = words("etc Cia Ltda Ltd S.A Inc Jr a.C d.C a.m p.m jan fev mar abr mai "
                                "jun jul ago set out nov dez"),
          .starters = words(
              "O A Os As Um Uma Uns Umas Este Esta Estes Estas Esse Essa Isso Isto Aquele Aquela "
              "Ele Ela Eles Elas Eu Tu Nós Você Vocês Seu Sua Seus Suas Meu Minha E Mas Ou Porém "
              "Em No Na Nos Nas Com Sem Por Pelo Pela Para De Do Da Dos Das Ao À Aos Às Sob Sobre "
              "Entre Até Desde Após Durante Se Quando Como Onde Porque Embora Pois Então Depois "
              "Assim Também Além Não Nem Já Que Quem Qual Todo Todos Muitos Alguns É")};
}

SentenceRules russian() {
  return {.code = "ru",
          .name = "russian",
          .never_last = words("т.е т.к т.н напр ср см г-н г-жа гр гос им о-в оз проф акад доц канд "
                              "докт инж ул пл пр просп пер наб пос дер р-н обл св отд"),
          .before_number = words("стр с рис табл гл ст п пп т тт кн вып № д кв тел ок"),
          .perhaps_last = words("т.д т.п др пр гг г в вв н.э э руб коп тыс млн млрд кг км мин янв "
                                "февр апр авг сент окт нояб дек"),
          .starters = words(
              "Он Она Оно Они Я Ты Мы Вы Это Этот Эта Эти Тот Та Те То Его Её Ее Их Мой Моя Наш "
              "Ваш Свой И А Но Или Да Однако В Во На С Со К Ко По Из От До Для За Над Под При Про "
              "У О Об Через Между После Перед Если Когда Как Где Куда Почему Что Кто Который Пока "
              "Хотя Потому Поэтому Затем Потом Тогда Так Также Тоже Не Ни Нет Все Всё Многие "
              "Некоторые Один Одна Там Здесь Теперь Уже")};
}

SentenceRules none() {
  SentenceRules rules;
  rules.code = rules.name = "none";
  return rules;
}

}  // namespace

const SentenceRules& sentence_rules(std::string_view language) {
  static const std::array<SentenceRules, 8> kLanguages = {
      english(), german(), french(), spanish(), italian(), portuguese(), russian(), none()};
  for (const SentenceRules& rules : kLanguages)
    if (language == rules.code || language == rules.name) return rules;
  std::vector<std::string_view> codes;
  for (const SentenceRules& rules : kLanguages) codes.push_back(rules.code);
  throw UsageError(
      "--language {}: there are rules for {}; none is for languages without abbreviations",
      language, fmt::join(codes, ", "));
}

}  // namespace trireme::tokenizer
